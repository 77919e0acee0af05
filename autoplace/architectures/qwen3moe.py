"""Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder: norms on q and k, no shared expert."""

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
)
from autoplace.architectures.qwen2moe import CLASSES as QWEN2
from autoplace.architectures.spec import Module, Role

_CLASSES = Classes("ktransformers.models.modeling_qwen3_moe", "Qwen3Moe")


def _modules(geometry: Geometry, layout: FileLayout) -> Iterator[Module]:
    """As KTransformers 0.3 builds it: each attention has Qwen2's rotary, the model its own."""

    def layer_modules(layer: int) -> Iterator[Module]:
        path = f"model.layers.{layer}"
        yield from gqa_attention(geometry, _CLASSES, layer)
        rotary = f"{path}.self_attn.rotary_emb"
        yield Module(rotary, QWEN2.of("RotaryEmbedding"), Role.ROTARY, layer)
        mlp = f"{path}.mlp"
        yield Module(mlp, _CLASSES.of("SparseMoeBlock"), Role.MLP, layer, is_moe=True)
        yield linear(f"{mlp}.gate", Role.ROUTER, layer, f"blk.{layer}.ffn_gate_inp.weight")
        yield stacked_experts(f"{mlp}.experts", layer)

    return causal_lm(geometry, _CLASSES, layer_modules, model_rotary=True)


def _expert_modules(geometry: Geometry, experts: Module) -> Iterator[Module]:
    return each_expert(
        require_moe(geometry).num_experts, experts, _CLASSES.of("MLP"), EXPERT_LINEARS
    )


def _tensors(geometry: Geometry, layout: FileLayout) -> Iterator[tuple[str, Shape]]:
    def layer_tensors(layer: int) -> Iterator[tuple[str, Shape]]:
        yield from gqa_tensors(geometry, layer)
        yield from experts_tensors(geometry, layer)

    return causal_lm_tensors(geometry, layer_tensors)


def _read_geometry(keys: Keys) -> Geometry:
    """llama.cpp renormalises this family's top-k weights."""
    moe = Moe(
        num_experts=keys.integer("expert_count"),
        top_k=keys.integer("expert_used_count"),
        expert_ffn=keys.integer("expert_feed_forward_length"),
        normalise_top_k=True,
    )
    return read_qwen_geometry(keys, "qwen3moe", moe, qkv_bias=False, qk_norm=True)


def _metadata(geometry: Geometry, layout: FileLayout) -> dict[str, object]:
    return qwen_metadata(geometry)


QWEN3MOE = Family(
    architecture="qwen3moe",
    read_geometry=_read_geometry,
    tensors=_tensors,
    modules=_modules,
    expert_modules=_expert_modules,
    metadata=_metadata,
)
