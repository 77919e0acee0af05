"""Which type llama.cpp's quantizer gives each tensor of a file: what a real `Q4_K_M` is made of.

Source: `llama_tensor_get_type_impl`, `tensor_allows_quantization` and `tensor_type_fallback` of
llama.cpp's src/llama-quant.cpp, without an importance matrix, for the families autoplace knows.
Checked tensor by tensor against the quantizer of llama.cpp b9190 (through cyllama 0.2.18) on
models with the layer counts of DeepSeek-V2, V2-Lite and V3, Mixtral 8x7B and 8x22B, Llama 8B, 65B
and 70B, Qwen3-MoE and Qwen2-MoE, in every quantised, F16 and BF16 mix below.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.weights.ggml import BLOCKS, GGMLType


@dataclass(frozen=True)
class QuantMix:
    """One choice of `llama-quantize`."""

    file_type: int
    """`general.file_type` of such a file: llama.cpp's `llama_ftype`."""
    default: GGMLType
    more_bits: GGMLType
    """For attention's v and for `down` in the layers of `uses_more_bits`."""
    attention_output_of_8_experts: GGMLType


_T = GGMLType

QUANTS: dict[str, QuantMix] = {
    "f32": QuantMix(0, _T.F32, _T.F32, _T.F32),
    "f16": QuantMix(1, _T.F16, _T.F16, _T.F16),
    "bf16": QuantMix(32, _T.BF16, _T.BF16, _T.BF16),
    "q8_0": QuantMix(7, _T.Q8_0, _T.Q8_0, _T.Q8_0),
    "q6_k": QuantMix(18, _T.Q6_K, _T.Q6_K, _T.Q6_K),
    "q5_k_m": QuantMix(17, _T.Q5_K, _T.Q6_K, _T.Q5_K),
    "q4_k_m": QuantMix(15, _T.Q4_K, _T.Q6_K, _T.Q5_K),
    "q4_0": QuantMix(2, _T.Q4_0, _T.Q4_0, _T.Q4_0),
    "mxfp4": QuantMix(38, _T.Q8_0, _T.Q8_0, _T.Q8_0),
}
MXFP4 = "mxfp4"
"""llama.cpp's MXFP4_MOE: experts as gpt-oss was published, all else Q8_0."""

_FALLBACKS: dict[GGMLType, GGMLType] = {
    _T.Q4_K: _T.Q5_0,
    _T.Q5_K: _T.Q5_1,
    _T.Q6_K: _T.Q8_0,
}
"""For rows that are no multiple of 256."""

_LAYER = re.compile(r"blk\.(\d+)\.")
_UNQUANTIZED = ("_norm.weight", "ffn_gate_inp.weight")
"""Norms and the router stay float32."""


def quant_mix(quant: str) -> QuantMix:
    """The mix of a name such as `q4_k_m`, or the error that lists the names."""
    try:
        return QUANTS[quant]
    except KeyError as error:
        hint = did_you_mean(quant, QUANTS)
        raise AutoplaceError(
            f"expected the name of a quantisation but got {quant!r}{hint}"
        ) from error


def uses_more_bits(layer: int, num_layers: int) -> bool:
    """True in the first eighth, in the last eighth, and in every third layer between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def tensor_type(
    name: str,
    shape: Sequence[int],
    *,
    quant: str,
    num_layers: int,
    num_experts: int = 0,
    tied_embeddings: bool = False,
) -> GGMLType:
    """The type of one tensor; `shape` in torch's order, `num_layers` with any MTP layer counted."""
    mix = quant_mix(quant)
    if not _is_quantized(name, shape):
        return GGMLType.F32
    if quant == MXFP4 and name.endswith("_exps.weight"):
        return _fitting(_T.MXFP4, row=shape[-1])
    if mix.default in (GGMLType.F32, GGMLType.F16, GGMLType.BF16):
        return mix.default
    chosen = _choose(name, shape, mix, num_layers, num_experts, tied_embeddings)
    return _fitting(chosen, row=shape[-1])


def _is_quantized(name: str, shape: Sequence[int]) -> bool:
    """Matrices and stacks of them only; leading ones do not count as dimensions."""
    matrix = any(size > 1 for size in shape[:-1])
    return matrix and name.endswith("weight") and not name.endswith(_UNQUANTIZED)


def _choose(
    name: str,
    shape: Sequence[int],
    mix: QuantMix,
    num_layers: int,
    num_experts: int,
    tied_embeddings: bool,
) -> GGMLType:
    if name == "output.weight" or (tied_embeddings and name == "token_embd.weight"):
        whole = shape[-1] % BLOCKS[mix.default][0] == 0
        return _T.Q6_K if whole and mix.default is not _T.Q8_0 else _T.Q8_0
    match = _LAYER.match(name)
    more = match is not None and uses_more_bits(int(match[1]), num_layers)
    if "attn_v.weight" in name or "attn_kv_b.weight" in name:
        if num_experts == 8:
            return _T.Q8_0
        if mix.default is _T.Q4_K and not more and _is_70b(name, shape, num_layers, num_experts):
            return _T.Q5_K
        return mix.more_bits if more else mix.default
    if "attn_k.weight" in name and num_experts == 8:
        return _T.Q8_0
    if "attn_output.weight" in name and num_experts == 8:
        return mix.attention_output_of_8_experts
    if "ffn_down" in name and more:
        return mix.more_bits
    return mix.default


def _is_70b(name: str, shape: Sequence[int], num_layers: int, num_experts: int) -> bool:
    """llama.cpp's `LLM_TYPE_70B`: dense, 80 layers, grouped queries."""
    return num_layers == 80 and not num_experts and "attn_v" in name and shape[0] < shape[-1]


def _fitting(ggml_type: GGMLType, *, row: int) -> GGMLType:
    """The type itself, or what llama.cpp takes when a row is no whole number of blocks."""
    if row % BLOCKS[ggml_type][0] == 0:
        return ggml_type
    fallback = _FALLBACKS.get(ggml_type, GGMLType.F16)
    return fallback if row % BLOCKS[fallback][0] == 0 else GGMLType.F16
