"""Turns GGML blocks back into float32 weights: the slow, exact twin of every kernel.

The arithmetic, its order included, is that of ggml's `dequantize_row_*` (ggml-quants.c), so the
result equals gguf-py's `gguf.quants.dequantize` to the bit.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autoplace.weights.blocks import IQ4_VALUES, LAYOUTS, MXFP4_VALUES
from autoplace.weights.ggml import BLOCKS, GGMLType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Blocks = NDArray[np.void]

_CHUNK_WEIGHTS = 1 << 17
"""Weights decoded at a time: temporaries stay in the cache, about 2 MiB."""


def dequantize(data: Bytes, ggml_type: GGMLType, out: Floats | None = None) -> Floats:
    """Weights of whole blocks, 1-D in the file's order; `out`, if given, is filled and returned.

    `data` is 1-D uint8 and contiguous, a multiple of the type's block bytes.
    """
    block_size, type_size = BLOCKS[ggml_type]
    assert data.ndim == 1, data.shape
    assert data.size % type_size == 0, (ggml_type.name, data.size)
    n_blocks = data.size // type_size
    if out is None:
        out = np.empty(n_blocks * block_size, np.float32)
    assert out.shape == (n_blocks * block_size,), (out.shape, n_blocks * block_size)
    if ggml_type in _PLAIN:
        _PLAIN[ggml_type](data, out)
        return out
    blocks = data.view(LAYOUTS[ggml_type])
    rows = out.reshape(n_blocks, block_size)
    step = _CHUNK_WEIGHTS // block_size
    for start in range(0, n_blocks, step):
        _DECODERS[ggml_type](blocks[start : start + step], rows[start : start + step])
    return out


# Below: n blocks of one type, decoded into `out` [n, block_size].


def _f32(data: Bytes, out: Floats) -> None:
    out[:] = data.view("<f4")


def _f16(data: Bytes, out: Floats) -> None:
    out[:] = data.view("<f2")


def _bf16(data: Bytes, out: Floats) -> None:
    np.left_shift(data.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def _planes(packed: Bytes, bits: int, *, groups: int = 1) -> Bytes:
    """Split every byte into its 8 / bits fields, lowest first: [n, groups, 8 / bits, width]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = packed.reshape(len(packed), groups, 1, -1) >> shifts
    fields &= np.uint8((1 << bits) - 1)
    return fields


def _scale(blocks: Blocks, field: str = "d") -> Floats:
    """A float16 field as float32 [n, 1]."""
    return blocks[field].astype(np.float32)[:, None]


def _bits_of_5(blocks: Blocks) -> Bytes:
    """The 5-bit values of Q5_0 and Q5_1: [n, 32]."""
    low = _planes(blocks["qs"], 4).reshape(-1, 32)
    high = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    return low | (high << np.uint8(4))


def _signed(values: Bytes, zero: int) -> Floats:
    """Unsigned stored values minus their zero point, as float32."""
    return (values.view(np.int8) - np.int8(zero)).astype(np.float32)


def _q4_0(blocks: Blocks, out: Floats) -> None:
    values = _signed(_planes(blocks["qs"], 4).reshape(-1, 32), 8)
    np.multiply(_scale(blocks), values, out=out)


def _q4_1(blocks: Blocks, out: Floats) -> None:
    values = _planes(blocks["qs"], 4).reshape(-1, 32).astype(np.float32)
    np.multiply(_scale(blocks), values, out=out)
    out += _scale(blocks, "m")


def _q5_0(blocks: Blocks, out: Floats) -> None:
    np.multiply(_scale(blocks), _signed(_bits_of_5(blocks), 16), out=out)


def _q5_1(blocks: Blocks, out: Floats) -> None:
    np.multiply(_scale(blocks), _bits_of_5(blocks).astype(np.float32), out=out)
    out += _scale(blocks, "m")


def _q8_0(blocks: Blocks, out: Floats) -> None:
    np.multiply(blocks["qs"].astype(np.float32), _scale(blocks), out=out)


def _q2_k(blocks: Blocks, out: Floats) -> None:
    scales = (_scale(blocks) * (blocks["scales"] & 15).astype(np.float32))[..., None]
    mins = (_scale(blocks, "dmin") * (blocks["scales"] >> 4).astype(np.float32))[..., None]
    values = _planes(blocks["qs"], 2, groups=2).reshape(-1, 16, 16).astype(np.float32)
    target = out.reshape(-1, 16, 16)
    np.multiply(scales, values, out=target)
    target -= mins


def _q3_k_scales(packed: Bytes) -> Floats:
    """16 signed 6-bit scales: low nibbles in bytes 0 to 7, high pairs of bits in 8 to 11."""
    low = _planes(packed[:, :8], 4).reshape(-1, 16)
    high = _planes(packed[:, 8:], 2).reshape(-1, 16)
    return _signed(low | (high << np.uint8(4)), 32)


def _q3_k(blocks: Blocks, out: Floats) -> None:
    scales = (_scale(blocks) * _q3_k_scales(blocks["scales"]))[..., None]
    low = _planes(blocks["qs"], 2, groups=2).reshape(-1, 256)
    high = _planes(blocks["hmask"], 1).reshape(-1, 256)
    values = _signed(low | (high << np.uint8(2)), 4)  # a high bit that is set means no offset
    np.multiply(scales, values.reshape(-1, 16, 16), out=out.reshape(-1, 16, 16))


def _scales_and_mins(packed: Bytes) -> tuple[Floats, Floats]:
    """The 8 + 8 six-bit scales and minimums of Q4_K and Q5_K, each [n, 8].

    The first four of each are the low six bits of bytes 0-3 and 4-7; the last four have their
    low nibbles in bytes 8-11 and their high two bits on top of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1)
    return scales.astype(np.float32), mins.astype(np.float32)


def _scale_and_shift(blocks: Blocks, values: Bytes, out: Floats) -> None:
    scales, mins = _scales_and_mins(blocks["scales"])
    target = out.reshape(-1, 8, 32)
    np.multiply((_scale(blocks) * scales)[..., None], values.astype(np.float32), out=target)
    target -= (_scale(blocks, "dmin") * mins)[..., None]


def _q4_k(blocks: Blocks, out: Floats) -> None:
    _scale_and_shift(blocks, _planes(blocks["qs"], 4, groups=4).reshape(-1, 8, 32), out)


def _q5_k(blocks: Blocks, out: Floats) -> None:
    low = _planes(blocks["qs"], 4, groups=4).reshape(-1, 8, 32)
    high = _planes(blocks["qh"], 1).reshape(-1, 8, 32)
    _scale_and_shift(blocks, low | (high << np.uint8(4)), out)


def _q6_k(blocks: Blocks, out: Floats) -> None:
    scales = (_scale(blocks) * blocks["scales"].astype(np.float32))[..., None]
    low = _planes(blocks["ql"], 4, groups=2).reshape(-1, 256)
    high = _planes(blocks["qh"], 2, groups=2).reshape(-1, 256)
    values = _signed(low | (high << np.uint8(4)), 32)
    np.multiply(scales, values.reshape(-1, 16, 16), out=out.reshape(-1, 16, 16))


def _iq4_nl(blocks: Blocks, out: Floats) -> None:
    levels = np.array(IQ4_VALUES, np.float32)[_planes(blocks["qs"], 4).reshape(-1, 32)]
    np.multiply(_scale(blocks), levels, out=out)


def _iq4_xs(blocks: Blocks, out: Floats) -> None:
    low = _planes(blocks["scales_l"], 4, groups=4).reshape(-1, 8)
    pairs = blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)
    high: Bytes = np.bitwise_and(pairs, 3).astype(np.uint8)
    packed = low | (high << np.uint8(4))
    scales = (_scale(blocks) * _signed(packed, 32))[..., None]
    levels = np.array(IQ4_VALUES, np.float32)[_planes(blocks["qs"], 4, groups=8)]
    np.multiply(scales, levels.reshape(-1, 8, 32), out=out.reshape(-1, 8, 32))


def _mxfp4(blocks: Blocks, out: Floats) -> None:
    """The exponent stands for 2^(e - 128), halved since the levels are doubled (`E8M0_HALF`)."""
    exponent = blocks["e"].astype(np.uint32)
    tiny = np.uint32(0x00200000) << np.minimum(exponent, 1)  # below 2^-126: subnormal
    bits = np.where(exponent < 2, tiny, (np.maximum(exponent, 1) - 1) << np.uint32(23))
    levels = np.array(MXFP4_VALUES, np.float32)[_planes(blocks["qs"], 4).reshape(-1, 32)]
    with np.errstate(over="ignore"):
        np.multiply(bits.view(np.float32)[:, None], levels, out=out)


_PLAIN: dict[GGMLType, Callable[[Bytes, Floats], None]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
}

_DECODERS: dict[GGMLType, Callable[[Blocks, Floats], None]] = {
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.IQ4_XS: _iq4_xs,
    GGMLType.MXFP4: _mxfp4,
}
