"""DeepSeek-V2-Lite, V2, V3 and R1, Kimi-K2: MLA, and experts from some layer on."""

import re
from collections.abc import Iterator

from autoplace.architectures.family import (
    Family,
    FileLayout,
    Keys,
    Shape,
    base_metadata,
    read_rope,
    require_moe,
)
from autoplace.architectures.geometry import Geometry, Mla, Moe
from autoplace.architectures.parts import (
    EXPERT_LINEARS,
    Classes,
    causal_lm,
    causal_lm_tensors,
    each_expert,
    experts_tensors,
    linear,
    stacked_experts,
    swiglu,
    swiglu_tensors,
)
from autoplace.architectures.spec import Module, Role
from autoplace.errors import AutoplaceError

_V2 = Classes("ktransformers.models.modeling_deepseek", "DeepseekV2")
_V3 = Classes("ktransformers.models.modeling_deepseek_v3", "DeepseekV3")
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")
_GATINGS = {1: "softmax", 2: "sigmoid"}
"""llama.cpp's `expert_gating_func`; V2 files older than the key mean softmax."""


def classes(geometry: Geometry) -> Classes:
    """V3's where the router is V3's (sigmoid scores or a bias per expert), V2's otherwise."""
    moe = require_moe(geometry)
    return _V3 if moe.gating == "sigmoid" or moe.expert_bias else _V2


def _modules(geometry: Geometry, layout: FileLayout) -> Iterator[Module]:
    def layer_modules(layer: int) -> Iterator[Module]:
        yield from _attention(geometry, layout, layer)
        if layer < geometry.num_dense_lead_layers:
            path = f"model.layers.{layer}.mlp"
            yield from swiglu(path, classes(geometry).of("MLP"), Role.DENSE_LINEAR, layer)
        else:
            yield from _moe(geometry, layer)

    return causal_lm(geometry, classes(geometry), layer_modules)


def _attention(geometry: Geometry, layout: FileLayout, layer: int) -> Iterator[Module]:
    attention, family = _mla(geometry), classes(geometry)
    path, block = f"model.layers.{layer}.self_attn", f"blk.{layer}"
    yield Module(path, family.of("Attention"), Role.ATTENTION, layer)
    if attention.q_lora_rank is None:
        yield _linear(path, "q_proj", layer, "attn_q")
    else:
        yield _linear(path, "q_a_proj", layer, "attn_q_a")
        yield _norm(path, "q_a_layernorm", family, layer, "attn_q_a_norm")
        yield _linear(path, "q_b_proj", layer, "attn_q_b")
    yield _linear(path, "kv_a_proj_with_mqa", layer, "attn_kv_a_mqa")
    yield _norm(path, "kv_a_layernorm", family, layer, "attn_kv_a_norm")
    kv_b = ("attn_k_b", "attn_v_b") if layout.split_kv_b else ("attn_kv_b",)
    tensors = (f"{block}.{name}.weight" for name in kv_b)
    yield linear(f"{path}.kv_b_proj", Role.KV_B, layer, *tensors)
    yield _linear(path, "o_proj", layer, "attn_output")
    yarn = "Yarn" if geometry.rope.yarn_factor != 1.0 else ""
    yield Module(f"{path}.rotary_emb", family.of(f"{yarn}RotaryEmbedding"), Role.ROTARY, layer)


def _moe(geometry: Geometry, layer: int) -> Iterator[Module]:
    moe, family, path = require_moe(geometry), classes(geometry), f"model.layers.{layer}.mlp"
    yield Module(path, family.of("MoE"), Role.MLP, layer, is_moe=True)
    yield stacked_experts(f"{path}.experts", layer)
    router = [f"blk.{layer}.ffn_gate_inp.weight"]
    if moe.expert_bias:
        router.append(f"blk.{layer}.exp_probs_b.bias")
    gate_class = f"{family.python_module}.MoEGate"
    yield Module(f"{path}.gate", gate_class, Role.ROUTER, layer, tuple(router))
    if moe.shared_ffn:
        shared = f"{path}.shared_experts"
        yield from swiglu(shared, family.of("MLP"), Role.SHARED_LINEAR, layer, "_shexp")


def _linear(path: str, name: str, layer: int, tensor: str) -> Module:
    return linear(f"{path}.{name}", Role.ATTENTION_LINEAR, layer, f"blk.{layer}.{tensor}.weight")


def _norm(path: str, name: str, family: Classes, layer: int, tensor: str) -> Module:
    tensors = (f"blk.{layer}.{tensor}.weight",)
    return Module(f"{path}.{name}", family.of("RMSNorm"), Role.NORM, layer, tensors)


def _expert_modules(geometry: Geometry, experts: Module) -> Iterator[Module]:
    num_experts = require_moe(geometry).num_experts
    return each_expert(num_experts, experts, classes(geometry).of("MLP"), EXPERT_LINEARS)


def _tensors(geometry: Geometry, layout: FileLayout) -> Iterator[tuple[str, Shape]]:
    return causal_lm_tensors(geometry, lambda layer: layer_tensors(geometry, layout, layer))


def layer_tensors(
    geometry: Geometry, layout: FileLayout, layer: int
) -> Iterator[tuple[str, Shape]]:
    """One layer's tensors; also those of an MTP layer, which is a MoE layer past the last."""
    yield from _attention_tensors(geometry, layout, layer)
    moe, hidden = require_moe(geometry), geometry.hidden
    if layer < geometry.num_dense_lead_layers:
        yield from swiglu_tensors(layer, hidden, geometry.dense_ffn)
        return
    yield from experts_tensors(geometry, layer)
    if moe.expert_bias:
        yield f"blk.{layer}.exp_probs_b.bias", (moe.num_experts,)
    if moe.shared_ffn:
        yield from swiglu_tensors(layer, hidden, moe.shared_ffn, "_shexp")


def _attention_tensors(
    geometry: Geometry, layout: FileLayout, layer: int
) -> Iterator[tuple[str, Shape]]:
    mla, hidden, heads, block = _mla(geometry), geometry.hidden, geometry.num_heads, f"blk.{layer}"
    query, q_rank, kv_rank = mla.qk_nope_dim + mla.qk_rope_dim, mla.q_lora_rank, mla.kv_lora_rank
    yield f"{block}.attn_norm.weight", (hidden,)
    if q_rank is None:
        yield f"{block}.attn_q.weight", (heads * query, hidden)
    else:
        yield f"{block}.attn_q_a.weight", (q_rank, hidden)
        yield f"{block}.attn_q_a_norm.weight", (q_rank,)
        yield f"{block}.attn_q_b.weight", (heads * query, q_rank)
    yield f"{block}.attn_kv_a_mqa.weight", (kv_rank + mla.qk_rope_dim, hidden)
    yield f"{block}.attn_kv_a_norm.weight", (kv_rank,)
    if layout.split_kv_b:
        yield f"{block}.attn_k_b.weight", (heads, kv_rank, mla.qk_nope_dim)
        yield f"{block}.attn_v_b.weight", (heads, mla.v_dim, kv_rank)
    else:
        yield f"{block}.attn_kv_b.weight", (heads * (mla.qk_nope_dim + mla.v_dim), kv_rank)
    yield f"{block}.attn_output.weight", (hidden, heads * mla.v_dim)
    yield f"{block}.ffn_norm.weight", (hidden,)


def _read_geometry(keys: Keys) -> Geometry:
    num_layers, num_mtp_layers = _count_layers(keys)
    num_dense = keys.integer("leading_dense_block_count", 0)
    rope_dim = keys.integer("rope.dimension_count")
    return Geometry(
        architecture="deepseek2",
        num_layers=num_layers,
        num_dense_lead_layers=num_dense,
        hidden=keys.integer("embedding_length"),
        num_heads=keys.integer("attention.head_count"),
        dense_ffn=keys.integer("feed_forward_length") if num_dense else 0,
        vocab=keys.vocab(),
        context_length=keys.integer("context_length"),
        rms_eps=keys.real("attention.layer_norm_rms_epsilon"),
        attention=_read_mla(keys, rope_dim),
        rope=read_rope(keys, dim=rope_dim, interleaved=True),
        moe=_read_moe(keys),
        tied_embeddings="output.weight" not in keys.shapes,
        num_mtp_layers=num_mtp_layers,
    )


def _count_layers(keys: Keys) -> tuple[int, int]:
    """Layers that run, and MTP layers after them.

    Files differ: `block_count` may count the MTP layers (then a key or their `nextn` tensors tell)
    or leave them out (then they are the blocks past it).
    """
    counted = keys.integer("block_count")
    found = [(match, name) for name in keys.shapes if (match := _BLOCK.match(name))]
    blocks = {int(match[1]) for match, _ in found}
    nextn = {int(match[1]) for match, name in found if ".nextn." in name}
    past_the_count = {block for block in blocks if block >= counted}
    mtp = max(keys.integer("nextn_predict_layers", 0), len(nextn | past_the_count))
    total = max(counted, *(block + 1 for block in blocks)) if blocks else counted
    return total - mtp, mtp


def _read_mla(keys: Keys, rope_dim: int) -> Mla:
    """Files with `attn_k_b` say the head's sizes in `*_length_mla`, older ones in `*_length`."""
    suffix = "_mla" if keys.has("attention.key_length_mla") else ""
    return Mla(
        q_lora_rank=keys.integer("attention.q_lora_rank", 0) or None,
        kv_lora_rank=keys.integer("attention.kv_lora_rank"),
        qk_nope_dim=keys.integer(f"attention.key_length{suffix}") - rope_dim,
        qk_rope_dim=rope_dim,
        v_dim=keys.integer(f"attention.value_length{suffix}"),
    )


def _read_moe(keys: Keys) -> Moe:
    gating = keys.integer("expert_gating_func", 1)
    if gating not in _GATINGS:
        raise AutoplaceError(
            f"metadata key 'deepseek2.expert_gating_func' should be 1 (softmax) or 2 (sigmoid) "
            f"but is {gating}"
        )
    expert_ffn = keys.integer("expert_feed_forward_length")
    return Moe(
        num_experts=keys.integer("expert_count"),
        top_k=keys.integer("expert_used_count"),
        expert_ffn=expert_ffn,
        shared_ffn=keys.integer("expert_shared_count", 0) * expert_ffn,
        gating=_GATINGS[gating],
        normalise_top_k=keys.flag("expert_weights_norm", False),
        routed_scaling=keys.real("expert_weights_scale", 0.0) or 1.0,
        num_groups=keys.integer("expert_group_count", 1),
        num_groups_used=keys.integer("expert_group_used_count", 1),
        expert_bias=any(name.endswith(".exp_probs_b.bias") for name in keys.shapes),
    )


def _metadata(geometry: Geometry, layout: FileLayout) -> dict[str, object]:
    moe, mla = require_moe(geometry), _mla(geometry)
    keys = base_metadata(geometry) | {
        "leading_dense_block_count": geometry.num_dense_lead_layers,
        "attention.kv_lora_rank": mla.kv_lora_rank,
        "expert_feed_forward_length": moe.expert_ffn,
        "expert_shared_count": moe.shared_ffn // moe.expert_ffn,
        "expert_weights_scale": moe.routed_scaling,
        "expert_weights_norm": moe.normalise_top_k,
        "expert_gating_func": next(k for k, name in _GATINGS.items() if name == moe.gating),
        **_head_metadata(geometry, layout),
    }
    if mla.q_lora_rank is not None:
        keys["attention.q_lora_rank"] = mla.q_lora_rank
    if moe.num_groups > 1:
        keys["expert_group_count"] = moe.num_groups
        keys["expert_group_used_count"] = moe.num_groups_used
    if geometry.num_mtp_layers:
        keys["nextn_predict_layers"] = geometry.num_mtp_layers
    return keys


def _head_metadata(geometry: Geometry, layout: FileLayout) -> dict[str, object]:
    """With `attn_k_b` llama.cpp takes the attention for multi-query over the compressed cache."""
    mla = _mla(geometry)
    key, value = mla.qk_nope_dim + mla.qk_rope_dim, mla.v_dim
    if not layout.split_kv_b:
        return {
            "attention.head_count_kv": geometry.num_heads,
            "attention.key_length": key,
            "attention.value_length": value,
        }
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": mla.kv_lora_rank + mla.qk_rope_dim,
        "attention.value_length": mla.kv_lora_rank,
        "attention.key_length_mla": key,
        "attention.value_length_mla": value,
    }


def _mla(geometry: Geometry) -> Mla:
    assert isinstance(geometry.attention, Mla), geometry.architecture
    return geometry.attention


DEEPSEEK2 = Family(
    architecture="deepseek2",
    read_geometry=_read_geometry,
    tensors=_tensors,
    modules=_modules,
    expert_modules=_expert_modules,
    metadata=_metadata,
)
