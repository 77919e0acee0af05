# mypy: ignore-errors
# ruff: noqa: N803, N806, RET505
"""GGUF blocks, or plain rows, to Marlin's packed form: dequantised and quantised in registers.

The arithmetic of `marlin_group` in kernels/cpu, in order, so that the bytes are the same: the scale
is 2 · max|w| / (2^b - 1) rounded to bfloat16, a code is w · (1 / scale) rounded to even. Fused
multiply-add must be off when these are compiled. Format: `include/autoplace/marlin_format.hpp`.
"""

import triton
import triton.language as tl

from autoplace.kernels.triton.dequantize_kernels import block_weight

_TO_EVEN = tl.constexpr(12582912.0)
"""1.5 · 2^23: adding it leaves no fraction of a float32 below 2^22, rounded to even."""


@triton.jit
def _row_weights(
    source, levels, row, k, known, K, TYPE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TYPE_SIZE: tl.constexpr,
):  # fmt: skip
    """Float32 weights k of rows; 0 where not known. Plain sources point to their elements."""
    if TYPE == 0 or TYPE == 1:
        return tl.load(source + row * K + k, known, other=0.0).to(tl.float32)
    elif TYPE == 30:
        bits = tl.load(source + row * K + k, known, other=0).to(tl.int32) << 16
        return bits.to(tl.float32, bitcast=True)
    else:
        block = source + (row * (K // BLOCK_SIZE) + k // BLOCK_SIZE) * TYPE_SIZE
        at = (k % BLOCK_SIZE).to(tl.int32)
        return tl.where(known, block_weight(block, at, known, levels, TYPE), 0.0)


@triton.jit
def _bfloat_bits(x):
    """The 16 bits of the nearest bfloat16, ties to even, of finite x ≥ 0.

    By integers: a cast truncates in Triton's interpreter.
    """
    bits = x.to(tl.int32, bitcast=True)
    return (bits + 32767 + ((bits >> 16) & 1)) >> 16


@triton.jit
def pack_kernel(
    source, levels, words, scales, first_tile, num_rows, K,
    TYPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TYPE_SIZE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """16 rows, 128 weights of each: codes to words [N'/16, K'/PER, 16], scales [N'/16, K'/64, 16].

    `source` holds `num_rows` rows of K; tile 0 of it is the matrix's `first_tile`. What is beyond
    rows and K is packed as zeros.
    """
    PER: tl.constexpr = 32 // BITS
    TOP: tl.constexpr = 2**BITS - 1
    HALF: tl.constexpr = 2 ** (BITS - 1)
    tile, pair = tl.program_id(0), tl.program_id(1)
    num_pairs = tl.cdiv(K, 128)
    lane = tl.arange(0, 16)
    row = (tile * 16 + lane).to(tl.int64)
    k = pair * 128 + tl.arange(0, 128)
    known = (row < num_rows)[:, None] & (k < K)[None, :]
    flat = _row_weights(
        source, levels, row[:, None], k[None, :], known, K, TYPE, BLOCK_SIZE, TYPE_SIZE
    )
    weights = tl.reshape(flat, (16, 2, 64))
    most = tl.max(tl.abs(weights), 2)  # [16, 2]
    bits = _bfloat_bits(tl.div_rn(2.0 * most, TOP * 1.0))
    scale = (bits << 16).to(tl.float32, bitcast=True)
    inverse = tl.where(scale > 0.0, tl.div_rn(1.0, tl.where(scale > 0.0, scale, 1.0)), 0.0)
    rounded = (weights * inverse[:, :, None] + _TO_EVEN) - _TO_EVEN
    codes = tl.minimum(tl.maximum(rounded.to(tl.int32), -HALF), HALF - 1)
    place = tl.arange(0, PER)
    if BITS == 4:
        shift = (place % 4) * 8 + (place // 4) * 4
        codes = codes + HALF
    else:
        shift = place * 8
        codes = codes & 255
    word = tl.sum(tl.reshape(codes, (16, 128 // PER, PER)) << shift[None, None, :], 2)
    at = (first_tile + tile).to(tl.int64) * num_pairs + pair
    step = tl.arange(0, 128 // PER)
    tl.store(words + (at * (128 // PER) + step[None, :]) * 16 + lane[:, None], word)
    group = tl.arange(0, 2)
    tl.store(scales + (at * 2 + group[None, :]) * 16 + lane[:, None], bits.to(tl.int16))
