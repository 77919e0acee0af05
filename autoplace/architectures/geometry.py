"""The numbers of a model's shape, as a GGUF header or a preset of conf/model gives them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class Gqa:
    """Grouped-query attention."""

    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    """The norms of q and k are over all heads together (MiniMax-M2)."""
    output_bias: bool = False
    sinks: bool = False
    """A learned logit a head that takes part in the softmax (gpt-oss)."""
    sliding_window: int = 0
    """Tokens that every other layer, the first among them, attends to; 0: all, in all layers."""

    def is_sliding(self, layer: int) -> bool:
        return self.sliding_window > 0 and layer % 2 == 0


@dataclass(frozen=True)
class Moe:
    """The routed experts and what runs beside them."""

    num_experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int = 0
    """Width of the shared expert(s) together; 0 where there is none."""
    shared_expert_gate: bool = False
    gating: str = "softmax"
    """`softmax` or `sigmoid`."""
    normalise_top_k: bool = False
    routed_scaling: float = 1.0
    num_groups: int = 1
    num_groups_used: int = 1
    expert_bias: bool = False
    linear_biases: bool = False
    """The router and every expert's linears have biases (gpt-oss)."""


@dataclass(frozen=True)
class Rope:
    """Rotary embedding. YaRN where `yarn_factor` is not 1."""

    theta: float
    dim: int
    interleaved: bool
    """True: pairs are neighbours (x0, x1); False: halves (x0, x[dim/2]) (NeoX)."""
    yarn_factor: float = 1.0
    original_context: int = 0
    yarn_log_multiplier: float = 0.0
    """0.1 · mscale_all_dim of Hugging Face, as GGUF stores it."""
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0


@dataclass(frozen=True)
class Geometry:
    """Everything about a model that does not depend on its weights' types."""

    architecture: str
    """`general.architecture` of the GGUF: deepseek2, llama, qwen3moe, qwen2moe, glm4moe, …"""
    num_layers: int
    """Layers that run. An MTP layer in the file is counted in `num_mtp_layers` only."""
    num_dense_lead_layers: int
    """Leading layers with a dense MLP; equal to `num_layers` for a dense model."""
    hidden: int
    num_heads: int
    dense_ffn: int
    vocab: int
    context_length: int
    rms_eps: float
    attention: Mla | Gqa
    rope: Rope
    moe: Moe | None = None
    tied_embeddings: bool = False
    num_mtp_layers: int = 0
