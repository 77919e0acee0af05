"""One transformer layer: attention, then the feed-forward half, each normed and added."""

from torch import Tensor, nn

from autoplace.models.gqa import Step


class DecoderLayer(nn.Module):
    """The builder sets self_attn, the two norms and the MLP, which families name differently."""

    def __init__(self, mlp_name: str) -> None:
        super().__init__()
        self.mlp_name = mlp_name

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), step)
        mlp = self._modules[self.mlp_name]
        assert mlp is not None
        out: Tensor = x + mlp(self.post_attention_layernorm(x))
        return out
