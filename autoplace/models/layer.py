"""One transformer layer: attention, then the feed-forward half, each normed and added."""

from torch import Tensor, nn

from autoplace.models.gqa import Step


class DecoderLayer(nn.Module):
    """The builder sets the submodules; the MLP is `mlp`, or `block_sparse_moe` in Mixtral."""

    self_attn: nn.Module
    input_layernorm: nn.Module
    post_attention_layernorm: nn.Module

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), step)
        modules = self._modules
        mlp = modules.get("mlp") or modules["block_sparse_moe"]
        assert mlp is not None
        out: Tensor = x + mlp(self.post_attention_layernorm(x))
        return out
