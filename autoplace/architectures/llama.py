"""Llama-like dense models (SmolLM2, …) and Mixtral, which GGUF calls `llama` too."""

from collections.abc import Iterator

from autoplace.architectures.family import (
    Family,
    FileLayout,
    Keys,
    Shape,
    base_metadata,
    read_rope,
)
from autoplace.architectures.geometry import Geometry, Gqa, Moe
from autoplace.architectures.parts import (
    MODULE_LIST,
    Classes,
    causal_lm,
    causal_lm_tensors,
    each_expert,
    experts_tensors,
    gqa_attention,
    gqa_metadata,
    gqa_tensors,
    linear,
    stacked_experts,
    swiglu,
    swiglu_tensors,
)
from autoplace.architectures.spec import Module, Role

_LLAMA = Classes("ktransformers.models.modeling_llama", "Llama")
_MIXTRAL = Classes("ktransformers.models.modeling_mixtral", "Mixtral")


def _classes(geometry: Geometry) -> Classes:
    return _MIXTRAL if geometry.moe else _LLAMA


def _modules(geometry: Geometry, layout: FileLayout) -> Iterator[Module]:
    family = _classes(geometry)

    def layer_modules(layer: int) -> Iterator[Module]:
        path = f"model.layers.{layer}"
        yield from gqa_attention(geometry, family, layer)
        rotary = f"{path}.self_attn.rotary_emb"
        yield Module(rotary, family.of("RotaryEmbedding"), Role.ROTARY, layer)
        if geometry.moe is None:
            yield from swiglu(f"{path}.mlp", family.of("MLP"), Role.DENSE_LINEAR, layer)
        else:
            yield from _moe(geometry.moe, layout, layer)

    return causal_lm(geometry, family, layer_modules, model_rotary=geometry.moe is None)


def _moe(moe: Moe, layout: FileLayout, layer: int) -> Iterator[Module]:
    path = f"model.layers.{layer}.block_sparse_moe"
    yield Module(path, _MIXTRAL.of("SparseMoeBlock"), Role.MLP, layer, is_moe=True)
    yield linear(f"{path}.gate", Role.ROUTER, layer, f"blk.{layer}.ffn_gate_inp.weight")
    if layout.stacked_experts:
        yield stacked_experts(f"{path}.experts", layer)
        return
    names = (name for name, _ in _single_expert_shapes(layer, moe.num_experts))
    yield Module(f"{path}.experts", MODULE_LIST, Role.EXPERTS, layer, tuple(names))


def _single_expert_shapes(layer: int, num_experts: int) -> Iterator[tuple[str, str]]:
    """Names of the old layout: gate of every expert, then up, then down."""
    for part in ("gate", "up", "down"):
        for expert in range(num_experts):
            yield f"blk.{layer}.ffn_{part}.{expert}.weight", part


def _expert_modules(geometry: Geometry, experts: Module) -> Iterator[Module]:
    assert geometry.moe is not None
    cls = _MIXTRAL.of("BlockSparseTop2MLP")
    return each_expert(geometry.moe.num_experts, experts, cls, ("w1", "w2", "w3"))


def _tensors(geometry: Geometry, layout: FileLayout) -> Iterator[tuple[str, Shape]]:
    def layer_tensors(layer: int) -> Iterator[tuple[str, Shape]]:
        yield from gqa_tensors(geometry, layer)
        if geometry.moe is None:
            yield from swiglu_tensors(layer, geometry.hidden, geometry.dense_ffn)
        elif layout.stacked_experts:
            yield from experts_tensors(geometry, layer)
        else:
            yield from _single_expert_tensors(geometry, geometry.moe, layer)

    return causal_lm_tensors(geometry, layer_tensors)


def _single_expert_tensors(geometry: Geometry, moe: Moe, layer: int) -> Iterator[tuple[str, Shape]]:
    yield f"blk.{layer}.ffn_gate_inp.weight", (moe.num_experts, geometry.hidden)
    for name, part in _single_expert_shapes(layer, moe.num_experts):
        shape = (moe.expert_ffn, geometry.hidden)
        yield name, shape[::-1] if part == "down" else shape


def _read_geometry(keys: Keys) -> Geometry:
    """llama.cpp renormalises the top-k weights of every `llama` with experts."""
    num_layers, hidden = keys.integer("block_count"), keys.integer("embedding_length")
    num_heads, ffn = keys.integer("attention.head_count"), keys.integer("feed_forward_length")
    head_dim = keys.integer("attention.key_length", hidden // num_heads)
    num_experts = keys.integer("expert_count", 0)
    moe = None
    if num_experts:
        top_k = keys.integer("expert_used_count")
        moe = Moe(num_experts, top_k, expert_ffn=ffn, normalise_top_k=True)
    return Geometry(
        architecture="llama",
        num_layers=num_layers,
        num_dense_lead_layers=0 if moe else num_layers,
        hidden=hidden,
        num_heads=num_heads,
        dense_ffn=0 if moe else ffn,
        vocab=keys.vocab(),
        context_length=keys.integer("context_length"),
        rms_eps=keys.real("attention.layer_norm_rms_epsilon"),
        attention=Gqa(
            num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            qkv_bias="blk.0.attn_q.bias" in keys.shapes,
        ),
        rope=read_rope(keys, dim=keys.integer("rope.dimension_count", head_dim), interleaved=True),
        moe=moe,
        tied_embeddings="output.weight" not in keys.shapes,
    )


def _metadata(geometry: Geometry, layout: FileLayout) -> dict[str, object]:
    return base_metadata(geometry) | gqa_metadata(geometry)


LLAMA = Family(
    architecture="llama",
    read_geometry=_read_geometry,
    tensors=_tensors,
    modules=_modules,
    expert_modules=_expert_modules,
    metadata=_metadata,
)
