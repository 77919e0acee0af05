"""Makes GGML blocks: from float32 weights (plain types, Q8_0), or at random for every type."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autoplace.weights.blocks import LAYOUTS, MXFP4_VALUES
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import BLOCKS, GGMLType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Blocks = NDArray[np.void]


def quantize(weights: Floats, ggml_type: GGMLType) -> Bytes:
    """The blocks of 1-D weights as F32, F16, BF16 or Q8_0, as ggml rounds them."""
    assert weights.ndim == 1, weights.shape
    return _QUANTIZERS[ggml_type](weights)


def random_blocks(
    ggml_type: GGMLType, n_blocks: int, *, std: float, rng: np.random.Generator
) -> Bytes:
    """Random blocks whose weights have mean about 0 and the standard deviation `std`.

    The types that `quantize` makes get normally distributed weights, the same for the same `rng`.
    The others get uniformly random quants, scales of the size that real files have, and shifts
    that centre them.
    """
    if ggml_type in _QUANTIZERS:
        n_weights = n_blocks * BLOCKS[ggml_type][0]
        return quantize(rng.standard_normal(n_weights, np.float32) * np.float32(std), ggml_type)
    data = rng.integers(0, 256, n_blocks * BLOCKS[ggml_type][1], dtype=np.uint8)
    blocks = data.view(LAYOUTS[ggml_type])
    if ggml_type is GGMLType.MXFP4:
        _set_exponents(blocks, std, rng)
        return data
    scale = rng.uniform(0.75, 1.25, n_blocks)
    if ggml_type in _SIGNED_SCALE:
        scale *= rng.choice((-1.0, 1.0), n_blocks)
    if ggml_type in _SCALE_SETTERS:
        _SCALE_SETTERS[ggml_type](blocks, rng)
    _set_scale(blocks, ggml_type, scale)
    _set_scale(blocks, ggml_type, scale * (std / _root_mean_square(data, ggml_type)))
    return data


def _root_mean_square(data: Bytes, ggml_type: GGMLType) -> float:
    weights = dequantize(data, ggml_type)
    return float(np.sqrt(np.dot(weights, weights) / max(weights.size, 1)))


def _quantize_bf16(weights: Floats) -> Bytes:
    """Round to nearest, ties to even; NaNs stay NaNs (ggml's `ggml_compute_fp32_to_bf16`)."""
    bits = weights.astype("<f4").view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> 16
    quiet_nan = (bits >> 16) | np.uint32(64)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet_nan, rounded).astype("<u2").view(np.uint8)


def _quantize_q8_0(weights: Floats) -> Bytes:
    """ggml's `quantize_row_q8_0_ref`: the largest of 32 becomes ±127, halves round away from 0."""
    rows = weights.reshape(-1, 32)
    d = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    scaled = rows * inverse
    size = np.abs(scaled)
    whole = np.floor(size)
    rounded = np.copysign(whole + (size - whole >= 0.5), scaled)
    blocks = np.empty(len(rows), LAYOUTS[GGMLType.Q8_0])
    blocks["d"] = d[:, 0]
    blocks["qs"] = rounded
    return blocks.view(np.uint8)


_QUANTIZERS: dict[GGMLType, Callable[[Floats], Bytes]] = {
    GGMLType.F32: lambda weights: weights.astype("<f4").view(np.uint8),
    GGMLType.F16: lambda weights: weights.astype("<f2").view(np.uint8),
    GGMLType.BF16: _quantize_bf16,
    GGMLType.Q8_0: _quantize_q8_0,
}

# Below: the parts of random blocks that are not free.

_SIGNED_SCALE = {GGMLType.Q4_0, GGMLType.Q5_0, GGMLType.IQ4_NL}
"""Their levels are not symmetric around 0: a random sign of the scale centres them."""

_SHIFT_PER_SCALE: dict[GGMLType, tuple[str, float]] = {
    GGMLType.Q4_1: ("m", -7.5),
    GGMLType.Q5_1: ("m", -15.5),
    GGMLType.Q2_K: ("dmin", 1.5),
    GGMLType.Q4_K: ("dmin", 7.5),
    GGMLType.Q5_K: ("dmin", 15.5),
}
"""The shift that centres quants from 0 to 2^bits - 1 (a minimum is subtracted, `m` is added)."""


def _set_scale(blocks: Blocks, ggml_type: GGMLType, scale: NDArray[np.float64]) -> None:
    blocks["d"] = scale
    if ggml_type in _SHIFT_PER_SCALE:
        field, ratio = _SHIFT_PER_SCALE[ggml_type]
        blocks[field] = scale * ratio


def _set_exponents(blocks: Blocks, std: float, rng: np.random.Generator) -> None:
    """Mix two neighbouring powers of two so that the mean square comes out right."""
    wanted = std / np.sqrt(np.mean(np.square(MXFP4_VALUES)))
    exponent = int(np.floor(np.log2(wanted)))
    share_of_upper = (wanted**2 / 4.0**exponent - 1) / 3
    blocks["e"] = exponent + 128 + (rng.random(len(blocks)) < share_of_upper)


def _set_q2_k_scales(blocks: Blocks, rng: np.random.Generator) -> None:
    scales = rng.integers(8, 16, blocks["scales"].shape, dtype=np.uint8)
    blocks["scales"] = scales | (scales << np.uint8(4))


def _six_bit_scales(shape: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    """Signed scales of 8 to 31 as stored, 32 above themselves."""
    sizes = rng.integers(8, 32, shape, dtype=np.int8)
    signs = rng.integers(0, 2, shape, dtype=np.int8) * 2 - 1
    stored: Bytes = (32 + sizes * signs).astype(np.uint8)
    return stored


def _set_q3_k_scales(blocks: Blocks, rng: np.random.Generator) -> None:
    stored = _six_bit_scales((len(blocks), 16), rng)
    low, high = stored & 15, (stored >> 4).reshape(-1, 4, 4)
    blocks["scales"][:, :8] = low[:, :8] | (low[:, 8:] << 4)
    blocks["scales"][:, 8:] = high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6


def _set_k_scales_and_mins(blocks: Blocks, rng: np.random.Generator) -> None:
    """Eight scales of 32 to 62 and as many minimums, equal or one more, in Q4_K's packing."""
    scales = rng.integers(32, 63, (len(blocks), 8), dtype=np.uint8)
    mins = scales + rng.integers(0, 2, scales.shape, dtype=np.uint8)
    packed = blocks["scales"]
    packed[:, 0:4] = scales[:, :4] | ((scales[:, 4:] >> 4) << 6)
    packed[:, 4:8] = mins[:, :4] | ((mins[:, 4:] >> 4) << 6)
    packed[:, 8:12] = (scales[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4)


def _set_q6_k_scales(blocks: Blocks, rng: np.random.Generator) -> None:
    sizes = rng.integers(64, 128, blocks["scales"].shape, dtype=np.int8)
    blocks["scales"] = sizes * (rng.integers(0, 2, sizes.shape, dtype=np.int8) * 2 - 1)


def _set_iq4_xs_scales(blocks: Blocks, rng: np.random.Generator) -> None:
    stored = _six_bit_scales((len(blocks), 8), rng)
    pairs = (stored >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16)
    blocks["scales_h"] = np.bitwise_or.reduce(pairs, axis=1)
    blocks["scales_l"] = (stored[:, 0::2] & 15) | ((stored[:, 1::2] & 15) << 4)


_SCALE_SETTERS: dict[GGMLType, Callable[[Blocks, np.random.Generator], None]] = {
    GGMLType.Q2_K: _set_q2_k_scales,
    GGMLType.Q3_K: _set_q3_k_scales,
    GGMLType.Q4_K: _set_k_scales_and_mins,
    GGMLType.Q5_K: _set_k_scales_and_mins,
    GGMLType.Q6_K: _set_q6_k_scales,
    GGMLType.IQ4_XS: _set_iq4_xs_scales,
}
