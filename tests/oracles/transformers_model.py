"""A Hugging Face model with the weights of a GGUF file: the oracle of every family's logits."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

from autoplace.architectures.geometry import Geometry, Gqa, Mla, Moe
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.weights.dequantize import dequantize
from autoplace.weights.gguf_file import GGUFFile


def transformers_model(gguf: GGUFFile, spec: ModelSpec) -> Any:
    """Hugging Face's own class for the family, in float32, with the file's weights."""
    config = _config(spec.geometry)
    config._attn_implementation = "eager"
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32).eval()
    missing, unexpected = model.load_state_dict(_state_dict(gguf, spec), strict=False)
    assert not unexpected, unexpected
    assert not [name for name in missing if "inv_freq" not in name], missing
    return model


def _config(geometry: Geometry) -> Any:
    common: dict[str, Any] = {
        "vocab_size": geometry.vocab,
        "hidden_size": geometry.hidden,
        "num_hidden_layers": geometry.num_layers,
        "num_attention_heads": geometry.num_heads,
        "max_position_embeddings": geometry.context_length,
        "rms_norm_eps": geometry.rms_eps,
        "tie_word_embeddings": geometry.tied_embeddings,
        "rope_parameters": _rope(geometry),
        "pad_token_id": None,
    }
    if isinstance(geometry.attention, Mla):
        return _deepseek_config(geometry, geometry.attention, common)
    common["num_key_value_heads"] = geometry.attention.num_kv_heads
    common["head_dim"] = geometry.attention.head_dim
    return _gqa_config(geometry, common)


def _rope(geometry: Geometry) -> Mapping[str, Any]:
    rope = geometry.rope
    if rope.yarn_factor == 1.0:
        return {"rope_type": "default", "rope_theta": rope.theta}
    return {
        "rope_type": "yarn",
        "rope_theta": rope.theta,
        "factor": rope.yarn_factor,
        "original_max_position_embeddings": rope.original_context,
        "beta_fast": rope.yarn_beta_fast,
        "beta_slow": rope.yarn_beta_slow,
        "mscale": rope.yarn_log_multiplier * 10,
        "mscale_all_dim": rope.yarn_log_multiplier * 10,
    }


def _deepseek_config(geometry: Geometry, mla: Mla, common: Mapping[str, Any]) -> Any:
    moe = geometry.moe
    assert moe is not None
    keys: dict[str, Any] = {
        **common,
        "intermediate_size": geometry.dense_ffn,
        "moe_intermediate_size": moe.expert_ffn,
        "n_routed_experts": moe.num_experts,
        "n_shared_experts": moe.shared_ffn // moe.expert_ffn,
        "num_experts_per_tok": moe.top_k,
        "first_k_dense_replace": geometry.num_dense_lead_layers,
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_dim,
        "qk_rope_head_dim": mla.qk_rope_dim,
        "v_head_dim": mla.v_dim,
        "num_key_value_heads": geometry.num_heads,
        "n_group": moe.num_groups,
        "topk_group": moe.num_groups_used,
        "routed_scaling_factor": moe.routed_scaling,
        "norm_topk_prob": moe.normalise_top_k,
    }
    if moe.gating == "sigmoid":
        return transformers.DeepseekV3Config(**keys)
    method = "greedy" if moe.num_groups == 1 else "group_limited_greedy"
    return transformers.DeepseekV2Config(**keys, topk_method=method)


def _gqa_config(geometry: Geometry, common: Mapping[str, Any]) -> Any:
    moe = geometry.moe
    if moe is None:
        return transformers.LlamaConfig(**common, intermediate_size=geometry.dense_ffn)
    if geometry.architecture == "llama":
        return transformers.MixtralConfig(
            **common,
            intermediate_size=moe.expert_ffn,
            num_local_experts=moe.num_experts,
            num_experts_per_tok=moe.top_k,
        )
    return _qwen_config(geometry, moe, common)


def _qwen_config(geometry: Geometry, moe: Moe, common: Mapping[str, Any]) -> Any:
    keys: dict[str, Any] = {
        **common,
        "moe_intermediate_size": moe.expert_ffn,
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "norm_topk_prob": moe.normalise_top_k,
    }
    if geometry.architecture == "qwen3moe":
        return transformers.Qwen3MoeConfig(**keys)
    return transformers.Qwen2MoeConfig(**keys, shared_expert_intermediate_size=moe.shared_ffn)


def _state_dict(gguf: GGUFFile, spec: ModelSpec) -> dict[str, Tensor]:
    """Modules have Hugging Face's paths already; experts are stacked, gate above up."""
    state = {}
    for module in spec.modules:
        tensors = [_dequantized(gguf, name) for name in module.tensors]
        path = module.path.replace("block_sparse_moe", "mlp")
        if module.role is Role.EXPERTS:
            gate, up, down = tensors
            state[f"{path}.gate_up_proj"] = torch.cat((gate, up), 1)
            state[f"{path}.down_proj"] = down
        elif tensors:
            state |= _parts(path, module.role, tensors, spec.geometry)
    return state


def _parts(
    path: str, role: Role, tensors: list[Tensor], geometry: Geometry
) -> Mapping[str, Tensor]:
    weight, *rest = tensors
    if role is Role.SHARED_GATE:
        weight = weight.view(1, -1)
    if geometry.architecture == "llama" and path.endswith(("q_proj", "k_proj")):
        weight = _unpermuted(weight, geometry)
    if not rest:
        return {f"{path}.weight": weight}
    second = "e_score_correction_bias" if role is Role.ROUTER else "bias"
    return {f"{path}.weight": weight, f"{path}.{second}": rest[0]}


def _unpermuted(weight: Tensor, geometry: Geometry) -> Tensor:
    """Undo the permutation of convert_hf_to_gguf, which makes neighbours of a head's halves."""
    assert isinstance(geometry.attention, Gqa)
    heads = weight.view(-1, geometry.attention.head_dim // 2, 2, weight.shape[-1])
    return heads.transpose(1, 2).reshape(weight.shape)


def _dequantized(gguf: GGUFFile, name: str) -> Tensor:
    info = gguf.tensors[name]
    return torch.from_numpy(dequantize(gguf.data(name), info.ggml_type)).view(info.shape)
