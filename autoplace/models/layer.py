"""One transformer layer: attention, then the feed-forward half, each normed and added."""

from collections.abc import Callable

from torch import Tensor, nn

from autoplace.models.backend import kernels
from autoplace.models.gqa import Step

Half = Callable[[Tensor, Step], Tensor]
"""x [T, D] → x + half(norm(x))."""


class DecoderLayer(nn.Module):
    """The builder sets the submodules; the MLP is `mlp`, or `block_sparse_moe` in Mixtral."""

    self_attn: nn.Module
    input_layernorm: nn.Module
    post_attention_layernorm: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.attention_of_one: Half | None = None
        self.feed_forward_of_one: Half | None = None
        """The halves by one call of a compiled kernel each, for one token, where that can be."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        attention: Half | None = None
        feed_forward: Half | None = None
        if len(x) == 1 and isinstance(step.start, int) and kernels() is not None:
            attention, feed_forward = self.attention_of_one, self.feed_forward_of_one
        x = (attention or self._attention)(x, step)
        return (feed_forward or self._feed_forward)(x, step)

    @property
    def feed_forward(self) -> nn.Module:
        modules = self._modules
        mlp = modules.get("mlp") or modules["block_sparse_moe"]
        assert mlp is not None
        return mlp

    def _attention(self, x: Tensor, step: Step) -> Tensor:
        out: Tensor = x + self.self_attn(self.input_layernorm(x), step)
        return out

    def _feed_forward(self, x: Tensor, step: Step) -> Tensor:
        out: Tensor = x + self.feed_forward(self.post_attention_layernorm(x))
        return out
