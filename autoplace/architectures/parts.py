"""The pieces that the families' module trees are made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autoplace.architectures.family import Keys, Shape, base_metadata, read_rope, require_moe
from autoplace.architectures.geometry import Geometry, Gqa, Moe
from autoplace.architectures.spec import Module, Role

LINEAR = "torch.nn.Linear"
EMBEDDING = "torch.nn.Embedding"
MODULE_LIST = "torch.nn.ModuleList"
SILU = "torch.nn.SiLU"


@dataclass(frozen=True)
class Classes:
    """Import paths of one family's own classes, as rules of KTransformers name them."""

    python_module: str
    """`ktransformers.models.modeling_mixtral`."""
    prefix: str
    """`Mixtral`: what the names of its classes begin with."""

    def of(self, name: str) -> str:
        """`ForCausalLM` → `ktransformers.models.modeling_mixtral.MixtralForCausalLM`."""
        return f"{self.python_module}.{self.prefix}{name}"


def linear(path: str, role: Role, layer: int | None, *tensors: str) -> Module:
    return Module(path, LINEAR, role, layer, tensors)


def swiglu(path: str, cls: str, role: Role, layer: int, suffix: str = "") -> Iterator[Module]:
    """A dense MLP or shared expert: gate, up, down and the activation. `suffix`: `_shexp`."""
    yield Module(path, cls, Role.MLP, layer)
    for name in ("gate", "up", "down"):
        tensor = f"blk.{layer}.ffn_{name}{suffix}.weight"
        yield linear(f"{path}.{name}_proj", role, layer, tensor)
    yield Module(f"{path}.act_fn", SILU, Role.CONTAINER, layer)


def swiglu_tensors(
    layer: int, hidden: int, width: int, suffix: str = ""
) -> Iterator[tuple[str, Shape]]:
    yield f"blk.{layer}.ffn_gate{suffix}.weight", (width, hidden)
    yield f"blk.{layer}.ffn_up{suffix}.weight", (width, hidden)
    yield f"blk.{layer}.ffn_down{suffix}.weight", (hidden, width)


def gqa_attention(geometry: Geometry, classes: Classes, layer: int) -> Iterator[Module]:
    """q, k, v, o, the norms of q and k where there are any, rotary."""
    attention, path = _gqa(geometry), f"model.layers.{layer}.self_attn"
    yield Module(path, classes.of("Attention"), Role.ATTENTION, layer)
    for name in ("q", "k", "v"):
        parts = ("weight", "bias") if attention.qkv_bias else ("weight",)
        tensors = (f"blk.{layer}.attn_{name}.{part}" for part in parts)
        yield linear(f"{path}.{name}_proj", Role.ATTENTION_LINEAR, layer, *tensors)
    output = f"blk.{layer}.attn_output.weight"
    yield linear(f"{path}.o_proj", Role.ATTENTION_LINEAR, layer, output)
    for name in ("q", "k") if attention.qk_norm else ():
        tensor = f"blk.{layer}.attn_{name}_norm.weight"
        yield Module(f"{path}.{name}_norm", classes.of("RMSNorm"), Role.NORM, layer, (tensor,))


def gqa_tensors(geometry: Geometry, layer: int) -> Iterator[tuple[str, Shape]]:
    attention, hidden = _gqa(geometry), geometry.hidden
    query = geometry.num_heads * attention.head_dim
    key = attention.num_kv_heads * attention.head_dim
    yield f"blk.{layer}.attn_norm.weight", (hidden,)
    for name, width in (("q", query), ("k", key), ("v", key)):
        yield f"blk.{layer}.attn_{name}.weight", (width, hidden)
        if attention.qkv_bias:
            yield f"blk.{layer}.attn_{name}.bias", (width,)
    for name in ("q", "k") if attention.qk_norm else ():
        yield f"blk.{layer}.attn_{name}_norm.weight", (attention.head_dim,)
    yield f"blk.{layer}.attn_output.weight", (hidden, query)
    yield f"blk.{layer}.ffn_norm.weight", (hidden,)


def experts_tensors(geometry: Geometry, layer: int) -> Iterator[tuple[str, Shape]]:
    """The router and the stacked routed experts."""
    moe, hidden = geometry.moe, geometry.hidden
    assert moe is not None, geometry.architecture
    num, width = moe.num_experts, moe.expert_ffn
    yield f"blk.{layer}.ffn_gate_inp.weight", (num, hidden)
    yield f"blk.{layer}.ffn_gate_exps.weight", (num, width, hidden)
    yield f"blk.{layer}.ffn_up_exps.weight", (num, width, hidden)
    yield f"blk.{layer}.ffn_down_exps.weight", (num, hidden, width)


def stacked_experts(path: str, layer: int) -> Module:
    tensors = tuple(f"blk.{layer}.ffn_{name}_exps.weight" for name in ("gate", "up", "down"))
    return Module(path, MODULE_LIST, Role.EXPERTS, layer, tensors)


EXPERT_LINEARS = ("gate_proj", "up_proj", "down_proj")


def each_expert(
    num_experts: int, experts: Module, cls: str, linears: tuple[str, ...]
) -> Iterator[Module]:
    """What is below the list of a layer's experts. None of it has tensors of its own in a file."""
    for expert in range(num_experts):
        path = f"{experts.path}.{expert}"
        yield Module(path, cls, Role.CONTAINER, experts.layer)
        for name in linears:
            yield Module(f"{path}.{name}", LINEAR, Role.CONTAINER, experts.layer)
        yield Module(f"{path}.act_fn", SILU, Role.CONTAINER, experts.layer)


def causal_lm(
    geometry: Geometry,
    classes: Classes,
    layer_modules: Callable[[int], Iterator[Module]],
    *,
    model_rotary: bool = False,
) -> Iterator[Module]:
    """The tree that all families share; `layer_modules` yields a layer's attention and MLP."""
    norm = classes.of("RMSNorm")
    yield Module("", classes.of("ForCausalLM"), Role.ROOT)
    yield Module("model", classes.of("Model"), Role.MODEL)
    yield Module("model.embed_tokens", EMBEDDING, Role.EMBEDDING, None, ("token_embd.weight",))
    yield Module("model.layers", MODULE_LIST, Role.CONTAINER)
    for layer in range(geometry.num_layers):
        path = f"model.layers.{layer}"
        yield Module(path, classes.of("DecoderLayer"), Role.CONTAINER, layer)
        yield from layer_modules(layer)
        for name, tensor in (("input", "attn"), ("post_attention", "ffn")):
            tensors = (f"blk.{layer}.{tensor}_norm.weight",)
            yield Module(f"{path}.{name}_layernorm", norm, Role.NORM, layer, tensors)
    yield Module("model.norm", norm, Role.NORM, None, ("output_norm.weight",))
    if model_rotary:
        yield Module("model.rotary_emb", classes.of("RotaryEmbedding"), Role.ROTARY)
    head = "token_embd.weight" if geometry.tied_embeddings else "output.weight"
    yield linear("lm_head", Role.LM_HEAD, None, head)


def causal_lm_tensors(
    geometry: Geometry, layer_tensors: Callable[[int], Iterator[tuple[str, Shape]]]
) -> Iterator[tuple[str, Shape]]:
    yield "token_embd.weight", (geometry.vocab, geometry.hidden)
    for layer in range(geometry.num_layers):
        yield from layer_tensors(layer)
    yield "output_norm.weight", (geometry.hidden,)
    if not geometry.tied_embeddings:
        yield "output.weight", (geometry.vocab, geometry.hidden)


def gqa_metadata(geometry: Geometry) -> dict[str, object]:
    attention = _gqa(geometry)
    return {
        "attention.head_count_kv": attention.num_kv_heads,
        "attention.key_length": attention.head_dim,
        "attention.value_length": attention.head_dim,
    }


def qwen_metadata(geometry: Geometry) -> dict[str, object]:
    """What the two Qwen families share."""
    ffn = {"expert_feed_forward_length": require_moe(geometry).expert_ffn}
    return base_metadata(geometry) | gqa_metadata(geometry) | ffn


def read_qwen_geometry(
    keys: Keys, architecture: str, moe: Moe, *, qkv_bias: bool, qk_norm: bool
) -> Geometry:
    """The geometry of a Qwen family: experts in every layer."""
    hidden, num_heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // num_heads)
    num_kv_heads = keys.integer("attention.head_count_kv", num_heads)
    attention = Gqa(num_kv_heads, head_dim, qkv_bias=qkv_bias, qk_norm=qk_norm)
    return read_gqa_geometry(keys, architecture, attention, moe, rope_dim=head_dim)


def read_gqa_geometry(
    keys: Keys,
    architecture: str,
    attention: Gqa,
    moe: Moe,
    *,
    rope_dim: int,
    num_dense_lead_layers: int = 0,
    num_mtp_layers: int = 0,
) -> Geometry:
    """The geometry of a family with grouped-query attention and NeoX rotary, from its header.

    `block_count` counts MTP layers.
    """
    return Geometry(
        architecture=architecture,
        num_layers=keys.integer("block_count") - num_mtp_layers,
        num_dense_lead_layers=num_dense_lead_layers,
        hidden=keys.integer("embedding_length"),
        num_heads=keys.integer("attention.head_count"),
        dense_ffn=keys.integer("feed_forward_length") if num_dense_lead_layers else 0,
        vocab=keys.vocab(),
        context_length=keys.integer("context_length"),
        rms_eps=keys.real("attention.layer_norm_rms_epsilon"),
        attention=attention,
        rope=read_rope(keys, dim=rope_dim, interleaved=False),
        moe=moe,
        tied_embeddings="output.weight" not in keys.shapes,
        num_mtp_layers=num_mtp_layers,
    )


POST_ATTENTION_NORM = "post_attention_norm"
"""What llama.cpp calls the norm in front of the MLP in newer families; `ffn_norm` in older ones."""


def with_post_attention_norm(modules: Iterator[Module]) -> Iterator[Module]:
    """The tree of a family whose files call that norm so."""
    for module in modules:
        if module.path.endswith("post_attention_layernorm"):
            module = replace(module, tensors=(f"blk.{module.layer}.{POST_ATTENTION_NORM}.weight",))
        yield module


def gqa_tensors_with_post_attention_norm(
    geometry: Geometry, layer: int
) -> Iterator[tuple[str, Shape]]:
    """`gqa_tensors` with that norm's newer name."""
    for name, shape in gqa_tensors(geometry, layer):
        yield name.replace(".ffn_norm.", f".{POST_ATTENTION_NORM}."), shape


def _gqa(geometry: Geometry) -> Gqa:
    assert isinstance(geometry.attention, Gqa), geometry.architecture
    return geometry.attention
