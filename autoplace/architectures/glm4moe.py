"""GLM-4.5 and GLM-4.5-Air: GQA with half rotary, dense lead layers, a shared expert, an MTP layer.

Known for plans, checks and exports; autoplace has no engine for it. Source: llama.cpp's `glm4moe`
tensors, and config.json of zai-org/GLM-4.5 and GLM-4.5-Air.
"""

from collections.abc import Iterator

from autoplace.architectures import family, parts
from autoplace.architectures.family import Family, FileLayout, Keys, Shape
from autoplace.architectures.geometry import Geometry, Gqa, Moe
from autoplace.architectures.parts import Classes
from autoplace.architectures.spec import Module, Role

CLASSES = Classes("ktransformers.models.modeling_glm4_moe", "Glm4Moe")


def _modules(geometry: Geometry, layout: FileLayout) -> Iterator[Module]:
    def layer_modules(layer: int) -> Iterator[Module]:
        yield from parts.gqa_attention(geometry, CLASSES, layer)
        path = f"model.layers.{layer}.mlp"
        if layer < geometry.num_dense_lead_layers:
            yield from parts.swiglu(path, CLASSES.of("MLP"), Role.DENSE_LINEAR, layer)
            return
        yield Module(path, CLASSES.of("MoE"), Role.MLP, layer, is_moe=True)
        yield parts.stacked_experts(f"{path}.experts", layer)
        tensors = (f"blk.{layer}.ffn_gate_inp.weight", f"blk.{layer}.exp_probs_b.bias")
        yield Module(f"{path}.gate", CLASSES.of("TopkRouter"), Role.ROUTER, layer, tensors)
        shared = f"{path}.shared_experts"
        yield from parts.swiglu(shared, CLASSES.of("MLP"), Role.SHARED_LINEAR, layer, "_shexp")

    tree = parts.causal_lm(geometry, CLASSES, layer_modules, model_rotary=True)
    return parts.with_post_attention_norm(tree)


def _expert_modules(geometry: Geometry, experts: Module) -> Iterator[Module]:
    num_experts = family.require_moe(geometry).num_experts
    return parts.each_expert(num_experts, experts, CLASSES.of("MLP"), parts.EXPERT_LINEARS)


def layer_tensors(geometry: Geometry, layer: int) -> Iterator[tuple[str, Shape]]:
    """One layer's tensors; also those of the MTP layer, which is a MoE layer past the last."""
    moe = family.require_moe(geometry)
    yield from parts.gqa_tensors_with_post_attention_norm(geometry, layer)
    if layer < geometry.num_dense_lead_layers:
        yield from parts.swiglu_tensors(layer, geometry.hidden, geometry.dense_ffn)
        return
    yield from parts.experts_tensors(geometry, layer)
    yield f"blk.{layer}.exp_probs_b.bias", (moe.num_experts,)
    yield from parts.swiglu_tensors(layer, geometry.hidden, moe.shared_ffn, "_shexp")


def _tensors(geometry: Geometry, layout: FileLayout) -> Iterator[tuple[str, Shape]]:
    return parts.causal_lm_tensors(geometry, lambda layer: layer_tensors(geometry, layer))


def _read_geometry(keys: Keys) -> Geometry:
    expert_ffn = keys.integer("expert_feed_forward_length")
    return parts.read_gqa_geometry(
        keys,
        "glm4moe",
        Gqa(
            keys.integer("attention.head_count_kv"),
            keys.integer("attention.key_length"),
            qkv_bias="blk.0.attn_q.bias" in keys.shapes,
            qk_norm="blk.0.attn_q_norm.weight" in keys.shapes,
        ),
        Moe(
            num_experts=keys.integer("expert_count"),
            top_k=keys.integer("expert_used_count"),
            expert_ffn=expert_ffn,
            shared_ffn=keys.integer("expert_shared_count", 1) * expert_ffn,
            gating="sigmoid",
            normalise_top_k=keys.flag("expert_weights_norm", True),
            routed_scaling=keys.real("expert_weights_scale", 1.0),
            expert_bias=True,
        ),
        rope_dim=keys.integer("rope.dimension_count"),
        num_dense_lead_layers=keys.integer("leading_dense_block_count", 0),
        num_mtp_layers=keys.integer("nextn_predict_layers", 0),
    )


def _metadata(geometry: Geometry, layout: FileLayout) -> dict[str, object]:
    moe = family.require_moe(geometry)
    return (
        family.base_metadata(geometry)
        | parts.gqa_metadata(geometry)
        | {
            "leading_dense_block_count": geometry.num_dense_lead_layers,
            "expert_feed_forward_length": moe.expert_ffn,
            "expert_shared_count": moe.shared_ffn // moe.expert_ffn,
            "expert_weights_norm": moe.normalise_top_k,
            "expert_weights_scale": moe.routed_scaling,
            "expert_gating_func": 2,
            "nextn_predict_layers": geometry.num_mtp_layers,
        }
    )


GLM4MOE = Family(
    architecture="glm4moe",
    read_geometry=_read_geometry,
    tensors=_tensors,
    modules=_modules,
    expert_modules=_expert_modules,
    metadata=_metadata,
)
