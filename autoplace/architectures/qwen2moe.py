"""Qwen2-57B-A14B and Qwen1.5-MoE: biases on q, k, v, and a shared expert with a sigmoid gate."""

from collections.abc import Iterator

from autoplace.architectures.family import Family, FileLayout, Keys, Shape, require_moe
from autoplace.architectures.geometry import Geometry, Moe
from autoplace.architectures.parts import (
    EXPERT_LINEARS,
    Classes,
    causal_lm,
    causal_lm_tensors,
    each_expert,
    experts_tensors,
    gqa_attention,
    gqa_tensors,
    linear,
    qwen_metadata,
    read_qwen_geometry,
    stacked_experts,
    swiglu,
    swiglu_tensors,
)
from autoplace.architectures.spec import Module, Role

CLASSES = Classes("ktransformers.models.modeling_qwen2_moe", "Qwen2Moe")


def _modules(geometry: Geometry, layout: FileLayout) -> Iterator[Module]:
    def layer_modules(layer: int) -> Iterator[Module]:
        path, block = f"model.layers.{layer}", f"blk.{layer}"
        yield from gqa_attention(geometry, CLASSES, layer)
        rotary = f"{path}.self_attn.rotary_emb"
        yield Module(rotary, CLASSES.of("RotaryEmbedding"), Role.ROTARY, layer)
        mlp = f"{path}.mlp"
        yield Module(mlp, CLASSES.of("SparseMoeBlock"), Role.MLP, layer, is_moe=True)
        yield linear(f"{mlp}.gate", Role.ROUTER, layer, f"{block}.ffn_gate_inp.weight")
        yield stacked_experts(f"{mlp}.experts", layer)
        shared, cls = f"{mlp}.shared_expert", CLASSES.of("MLP")
        yield from swiglu(shared, cls, Role.SHARED_LINEAR, layer, "_shexp")
        gate = f"{block}.ffn_gate_inp_shexp.weight"
        yield linear(f"{mlp}.shared_expert_gate", Role.SHARED_GATE, layer, gate)

    return causal_lm(geometry, CLASSES, layer_modules)


def _expert_modules(geometry: Geometry, experts: Module) -> Iterator[Module]:
    return each_expert(
        require_moe(geometry).num_experts, experts, CLASSES.of("MLP"), EXPERT_LINEARS
    )


def _tensors(geometry: Geometry, layout: FileLayout) -> Iterator[tuple[str, Shape]]:
    moe, hidden = require_moe(geometry), geometry.hidden

    def layer_tensors(layer: int) -> Iterator[tuple[str, Shape]]:
        yield from gqa_tensors(geometry, layer)
        yield from experts_tensors(geometry, layer)
        yield f"blk.{layer}.ffn_gate_inp_shexp.weight", (hidden,)
        yield from swiglu_tensors(layer, hidden, moe.shared_ffn, "_shexp")

    return causal_lm_tensors(geometry, layer_tensors)


def _read_geometry(keys: Keys) -> Geometry:
    """llama.cpp does not renormalise this family's top-k weights."""
    moe = Moe(
        num_experts=keys.integer("expert_count"),
        top_k=keys.integer("expert_used_count"),
        expert_ffn=keys.integer("expert_feed_forward_length"),
        shared_ffn=keys.integer("expert_shared_feed_forward_length"),
        shared_expert_gate=True,
    )
    return read_qwen_geometry(keys, "qwen2moe", moe, qkv_bias=True, qk_norm=False)


def _metadata(geometry: Geometry, layout: FileLayout) -> dict[str, object]:
    shared = {"expert_shared_feed_forward_length": require_moe(geometry).shared_ffn}
    return qwen_metadata(geometry) | shared


QWEN2MOE = Family(
    architecture="qwen2moe",
    read_geometry=_read_geometry,
    tensors=_tensors,
    modules=_modules,
    expert_modules=_expert_modules,
    metadata=_metadata,
)
