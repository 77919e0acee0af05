"""MiniMax-M2: GQA with norms over all heads of q and k, experts in every layer, no shared expert.

Known for plans, checks and exports; autoplace has no engine for it. Source: llama.cpp's
`minimax-m2` tensors, and config.json of MiniMaxAI/MiniMax-M2.
"""

from collections.abc import Iterator

from autoplace.architectures import family, parts
from autoplace.architectures.family import Family, FileLayout, Keys, Shape
from autoplace.architectures.geometry import Geometry, Gqa, Moe
from autoplace.architectures.parts import Classes
from autoplace.architectures.spec import Module, Role

CLASSES = Classes("transformers.models.minimax_m2.modeling_minimax_m2", "MiniMaxM2")


def _modules(geometry: Geometry, layout: FileLayout) -> Iterator[Module]:
    def layer_modules(layer: int) -> Iterator[Module]:
        yield from parts.gqa_attention(geometry, CLASSES, layer)
        path = f"model.layers.{layer}.block_sparse_moe"
        yield Module(path, CLASSES.of("SparseMoeBlock"), Role.MLP, layer, is_moe=True)
        router = (f"blk.{layer}.ffn_gate_inp.weight", f"blk.{layer}.exp_probs_b.bias")
        yield Module(f"{path}.gate", CLASSES.of("TopKRouter"), Role.ROUTER, layer, router)
        yield parts.stacked_experts(f"{path}.experts", layer)

    return parts.causal_lm(geometry, CLASSES, layer_modules, model_rotary=True)


def _expert_modules(geometry: Geometry, experts: Module) -> Iterator[Module]:
    num_experts = family.require_moe(geometry).num_experts
    return parts.each_expert(num_experts, experts, CLASSES.of("MLP"), ("w1", "w2", "w3"))


def _tensors(geometry: Geometry, layout: FileLayout) -> Iterator[tuple[str, Shape]]:
    def layer_tensors(layer: int) -> Iterator[tuple[str, Shape]]:
        yield from _wide_norms(geometry, layer)
        yield from parts.experts_tensors(geometry, layer)
        yield f"blk.{layer}.exp_probs_b.bias", (family.require_moe(geometry).num_experts,)

    return parts.causal_lm_tensors(geometry, layer_tensors)


def _wide_norms(geometry: Geometry, layer: int) -> Iterator[tuple[str, Shape]]:
    """The norms of q and k have a weight for every value of every head."""
    attention = geometry.attention
    assert isinstance(attention, Gqa)
    heads = {"attn_q_norm": geometry.num_heads, "attn_k_norm": attention.num_kv_heads}
    for name, shape in parts.gqa_tensors(geometry, layer):
        num_heads = heads.get(name.split(".")[2])
        yield name, shape if num_heads is None else (num_heads * attention.head_dim,)


def _read_geometry(keys: Keys) -> Geometry:
    return parts.read_gqa_geometry(
        keys,
        "minimax-m2",
        Gqa(
            keys.integer("attention.head_count_kv"),
            keys.integer("attention.key_length"),
            qk_norm=True,
            wide_qk_norm=True,
        ),
        Moe(
            num_experts=keys.integer("expert_count"),
            top_k=keys.integer("expert_used_count"),
            expert_ffn=keys.integer("expert_feed_forward_length"),
            gating="sigmoid",
            normalise_top_k=True,
            expert_bias=True,
        ),
        rope_dim=keys.integer("rope.dimension_count"),
    )


def _metadata(geometry: Geometry, layout: FileLayout) -> dict[str, object]:
    return (
        family.base_metadata(geometry)
        | parts.gqa_metadata(geometry)
        | {
            "expert_feed_forward_length": family.require_moe(geometry).expert_ffn,
            "expert_gating_func": 2,
        }
    )


MINIMAX_M2 = Family(
    architecture="minimax-m2",
    read_geometry=_read_geometry,
    tensors=_tensors,
    modules=_modules,
    expert_modules=_expert_modules,
    metadata=_metadata,
)
