# mypy: ignore-errors
# ruff: noqa: N803, RET505
"""GGUF blocks to weights, one kernel a type: the arithmetic of ggml's dequantize_row_*, in order.

Fused multiply-add must be off when these are compiled: then float32 results are bit-exact with
`autoplace.weights.dequantize`. `at` is a weight's number within its block, `block` points to the
block's first byte. Layouts: `autoplace.weights.blocks`.
"""

import triton
import triton.language as tl


@triton.jit
def _half(at, known):
    """The float16 at a byte address, which may be odd, as float32."""
    low = tl.load(at, known, other=0).to(tl.uint16)
    high = tl.load(at + 1, known, other=0).to(tl.uint16)
    return (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _byte(at, known):
    return tl.load(at, known, other=0).to(tl.int32)


@triton.jit
def _signed_byte(at, known):
    return (_byte(at, known) << 24) >> 24


@triton.jit
def _q4_0(block, at, known):
    code = (_byte(block + 2 + at % 16, known) >> (at // 16 * 4)) & 15
    return _half(block, known) * (code - 8).to(tl.float32)


@triton.jit
def _q5_0(block, at, known):
    low = (_byte(block + 6 + at % 16, known) >> (at // 16 * 4)) & 15
    high = (_byte(block + 2 + at // 8, known) >> (at % 8)) & 1
    return _half(block, known) * ((low | (high << 4)) - 16).to(tl.float32)


@triton.jit
def _q8_0(block, at, known):
    return _signed_byte(block + 2 + at, known).to(tl.float32) * _half(block, known)


@triton.jit
def _q2_k(block, at, known):
    scale = _byte(block + at // 16, known)
    code = (_byte(block + 16 + at // 128 * 32 + at % 32, known) >> (at // 32 % 4 * 2)) & 3
    d, least = _half(block + 80, known), _half(block + 82, known)
    shift = least * (scale >> 4).to(tl.float32)
    return d * (scale & 15).to(tl.float32) * code.to(tl.float32) - shift


@triton.jit
def _q3_k(block, at, known):
    group = at // 16
    low = (_byte(block + 96 + group % 8, known) >> (group // 8 * 4)) & 15
    high = (_byte(block + 104 + group % 4, known) >> (group // 4 * 2)) & 3
    scale = _half(block + 108, known) * ((low | (high << 4)) - 32).to(tl.float32)
    code = (_byte(block + 32 + at // 128 * 32 + at % 32, known) >> (at // 32 % 4 * 2)) & 3
    bit = (_byte(block + at % 32, known) >> (at // 32)) & 1
    return scale * ((code | (bit << 2)) - 4).to(tl.float32)


@triton.jit
def _scale_and_min(packed, group, known):
    """The six-bit scale and minimum of group 0 … 7 of Q4_K and Q5_K."""
    nth = group % 4
    first, second = _byte(packed + nth, known), _byte(packed + 4 + nth, known)
    third = _byte(packed + 8 + nth, known)
    scale = tl.where(group < 4, first & 63, (third & 15) | ((first >> 2) & 48))
    least = tl.where(group < 4, second & 63, (third >> 4) | ((second >> 2) & 48))
    return scale.to(tl.float32), least.to(tl.float32)


@triton.jit
def _q4_k(block, at, known):
    scale, least = _scale_and_min(block + 4, at // 32, known)
    code = (_byte(block + 16 + at // 64 * 32 + at % 32, known) >> (at // 32 % 2 * 4)) & 15
    shift = _half(block + 2, known) * least
    return _half(block, known) * scale * code.to(tl.float32) - shift


@triton.jit
def _q5_k(block, at, known):
    scale, least = _scale_and_min(block + 4, at // 32, known)
    low = (_byte(block + 48 + at // 64 * 32 + at % 32, known) >> (at // 32 % 2 * 4)) & 15
    high = (_byte(block + 16 + at % 32, known) >> (at // 32)) & 1
    shift = _half(block + 2, known) * least
    return _half(block, known) * scale * (low | (high << 4)).to(tl.float32) - shift


@triton.jit
def _q6_k(block, at, known):
    low = (_byte(block + at // 128 * 64 + at % 64, known) >> (at // 64 % 2 * 4)) & 15
    high = (_byte(block + 128 + at // 128 * 32 + at % 32, known) >> (at // 32 % 4 * 2)) & 3
    scale = _signed_byte(block + 192 + at // 16, known).to(tl.float32)
    return _half(block + 208, known) * scale * ((low | (high << 4)) - 32).to(tl.float32)


@triton.jit
def _iq4_xs(block, at, known, levels):
    group = at // 32
    low = (_byte(block + 4 + group // 2, known) >> (group % 2 * 4)) & 15
    high = (_byte(block + 2 + group // 4, known) >> (group % 4 * 2)) & 3
    scale = _half(block, known) * ((low | (high << 4)) - 32).to(tl.float32)
    code = (_byte(block + 8 + group * 16 + at % 16, known) >> (at // 16 % 2 * 4)) & 15
    return scale * tl.load(levels + code)


@triton.jit
def block_weight(block, at, known, levels, TYPE: tl.constexpr):
    """Weights `at` of the blocks that begin at `block`, in float32."""
    if TYPE == 2:
        return _q4_0(block, at, known)
    elif TYPE == 6:
        return _q5_0(block, at, known)
    elif TYPE == 8:
        return _q8_0(block, at, known)
    elif TYPE == 10:
        return _q2_k(block, at, known)
    elif TYPE == 11:
        return _q3_k(block, at, known)
    elif TYPE == 12:
        return _q4_k(block, at, known)
    elif TYPE == 13:
        return _q5_k(block, at, known)
    elif TYPE == 14:
        return _q6_k(block, at, known)
    else:
        tl.static_assert(TYPE == 23, "no such GGML type here")
        return _iq4_xs(block, at, known, levels)


@triton.jit
def dequantize_kernel(
    blocks, levels, out, num_weights, TYPE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TYPE_SIZE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """out[i] = weight i of GGML type TYPE; `levels` are the 16 of IQ4_XS in float32."""
    index = tl.program_id(0).to(tl.int64) * STEP + tl.arange(0, STEP)
    known = index < num_weights
    block = blocks + index // BLOCK_SIZE * TYPE_SIZE
    at = (index % BLOCK_SIZE).to(tl.int32)
    value = block_weight(block, at, known, levels, TYPE)
    tl.store(out + index, value.to(out.dtype.element_ty), known)
