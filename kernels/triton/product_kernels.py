# mypy: ignore-errors
# ruff: noqa: N803, N806, RET505
"""Products with packed or plain weights: one row of activations at a time, or tiles by tl.dot.

y[row, N] = x[row, K] · W[N, K]ᵀ. BITS is 4 or 8 for the packed format of
`kernels/include/autoplace/marlin_format.hpp`, whose codes are read as int32 words
[N' / 16, K' / PER, 16] of PER = 32 / BITS weights each, and 0 for plain weights [N, K].
Sums are float32; a group's codes, which bf16 holds exactly, are multiplied before its scale is.
"""

import triton
import triton.language as tl


@triton.jit
def _code(words, position, BITS: tl.constexpr):
    """The signed code at `position` 0 … PER - 1 of a word, by increasing k, in float32.

    Its bits are put under those of 2^23, which is then taken off: exact, and at the full rate of
    the GPU, where converting integers runs at a quarter of it or less (sm_80).
    """
    if BITS == 4:
        bits = (words >> ((position % 4) * 8 + (position // 4) * 4)) & 15
        return (bits | 0x4B000000).to(tl.float32, bitcast=True) - 8388616.0
    else:
        bits = ((words >> (position * 8)) & 255) ^ 128
        return (bits | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def _packed_row(x, words, scales, begin, end, K, BITS: tl.constexpr, BLOCK_K: tl.constexpr):
    """One row of x times one tile of 16 rows of W, over words begin … end: [16]."""
    PER: tl.constexpr = 32 // BITS
    STEP: tl.constexpr = BLOCK_K // PER
    lane = tl.arange(0, 16)
    acc = tl.zeros((STEP, 16), tl.float32)
    for first in range(begin, end, STEP):
        at = first + tl.arange(0, STEP)
        known = at < end
        word = tl.load(words + at[:, None] * 16 + lane[None, :], known[:, None], other=0)
        partial = tl.zeros((STEP, 16), tl.float32)
        for position in tl.static_range(PER):
            k = at * PER + position
            value = tl.load(x + k, known & (k < K), other=0.0).to(tl.float32)
            partial += _code(word, position, BITS) * value[:, None]
        group = at // (64 // PER)
        scale = tl.load(scales + group[:, None] * 16 + lane[None, :], known[:, None], other=0.0)
        acc += partial * scale.to(tl.float32)
    return tl.sum(acc, 0)


@triton.jit
def _plain_row(x, weight, n, begin, end, N, K, BLOCK_K: tl.constexpr):
    """One row of x times rows n [16] of W, over k begin … end: [16]."""
    acc = tl.zeros((16, BLOCK_K), tl.float32)
    for first in range(begin, end, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        known = (k < end) & (k < K)
        value = tl.load(x + k, known, other=0.0).to(tl.float32)
        at = n.to(tl.int64)[:, None] * K + k[None, :]
        tile = tl.load(weight + at, (n < N)[:, None] & known[None, :], other=0.0)
        acc += tile.to(tl.float32) * value[None, :]
    return tl.sum(acc, 1)


@triton.jit
def _row(
    x, data, scales, tile, split, N, K, SPLIT: tl.constexpr, BITS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One row of x times rows 16·tile … of a matrix, over the split's share of k."""
    num_groups = tl.cdiv(K, 128) * 2
    share = tl.cdiv(num_groups, SPLIT)
    begin = split * share
    end = tl.minimum(begin + share, num_groups)
    if BITS == 0:
        n = tile * 16 + tl.arange(0, 16)
        return _plain_row(x, data, n, begin * 64, end * 64, N, K, BLOCK_K)
    else:
        PER_GROUP: tl.constexpr = 2 * BITS
        words = data + tile.to(tl.int64) * num_groups * PER_GROUP * 16
        tile_scales = scales + tile.to(tl.int64) * num_groups * 16
        first, last = begin * PER_GROUP, end * PER_GROUP
        return _packed_row(x, words, tile_scales, first, last, K, BITS, BLOCK_K)


@triton.jit
def rows_kernel(
    x, ids, data, scales, data_stride, scale_stride, out, x_divisor, N, K,
    ROUTED: tl.constexpr, SPLIT: tl.constexpr, BITS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[split, row, N]: row r of the output is row r // x_divisor of x times matrix ids[r]."""
    row, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if ROUTED:
        matrix = tl.load(ids + row).to(tl.int64)
        data += matrix * data_stride
        scales += matrix * scale_stride
    x += (row // x_divisor).to(tl.int64) * K
    y = _row(x, data, scales, tile, split, N, K, SPLIT, BITS, BLOCK_K)
    n = tile * 16 + tl.arange(0, 16)
    at = (split * tl.num_programs(0) + row).to(tl.int64) * N + n
    tl.store(out + at, y.to(out.dtype.element_ty), n < N)


@triton.jit
def swiglu_rows_kernel(
    x, ids, gate, gate_scales, up, up_scales, gate_stride, gate_scale_stride, up_stride,
    up_scale_stride, out, x_divisor, N, K,
    GATE_BITS: tl.constexpr, UP_BITS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[row, N] = silu(gate · x) · (up · x) with the matrices ids[row]."""
    row, tile = tl.program_id(0), tl.program_id(1)
    matrix = tl.load(ids + row).to(tl.int64)
    gate += matrix * gate_stride
    gate_scales += matrix * gate_scale_stride
    up += matrix * up_stride
    up_scales += matrix * up_scale_stride
    x += (row // x_divisor).to(tl.int64) * K
    g = _row(x, gate, gate_scales, tile, 0, N, K, 1, GATE_BITS, BLOCK_K)
    u = _row(x, up, up_scales, tile, 0, N, K, 1, UP_BITS, BLOCK_K)
    n = tile * 16 + tl.arange(0, 16)
    y = g * tl.sigmoid(g) * u
    tl.store(out + row.to(tl.int64) * N + n, y.to(out.dtype.element_ty), n < N)


@triton.jit
def _tile_product(acc, left, data, scales, n, group, N, K, BITS: tl.constexpr, DOT: tl.constexpr):
    """acc [BM, BN] plus left [BM, 64] times rows n of W over one group of 64."""
    k = group * 64 + tl.arange(0, 64)
    if BITS == 0:
        at = n.to(tl.int64)[None, :] * K + k[:, None]
        right = tl.load(data + at, (k < K)[:, None] & (n < N)[None, :], other=0.0)
        return tl.dot(left, right.to(DOT), acc, input_precision="ieee")
    else:
        PER: tl.constexpr = 32 // BITS
        num_groups = tl.cdiv(K, 128) * 2
        tile, lane = (n // 16).to(tl.int64), n % 16
        word = group * (2 * BITS) + tl.arange(0, 2 * BITS)
        at = tile[None, :] * (num_groups * 2 * BITS * 16) + word[:, None] * 16 + lane[None, :]
        known = n < N
        words = tl.load(data + at, known[None, :], other=0)  # [64 / PER, BN]
        codes = _code(words[:, None, :], tl.arange(0, PER)[None, :, None], BITS)
        right = tl.reshape(codes.to(DOT), (64, n.shape[0]))
        scale = tl.load(scales + tile * (num_groups * 16) + group * 16 + lane, known, other=0.0)
        product = tl.dot(left, right, input_precision="ieee")
        return acc + product * scale.to(tl.float32)[None, :]


@triton.jit
def _left(x, rows, group, K, known, DOT: tl.constexpr):
    """Rows of x over one group of 64: [BM, 64]."""
    k = group * 64 + tl.arange(0, 64)
    at = rows.to(tl.int64)[:, None] * K + k[None, :]
    return tl.load(x + at, known[:, None] & (k < K)[None, :], other=0.0).to(DOT)


@triton.jit
def tiles_kernel(
    x, data, scales, out, T, N, K, SPLIT: tl.constexpr, BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """out[split, T, N] = x [T, K] · W [N, K]ᵀ over the split's share of k."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    num_groups = tl.cdiv(K, 64)
    share = tl.cdiv(num_groups, SPLIT)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for group in range(split * share, tl.minimum(split * share + share, num_groups)):
        left = _left(x, rows, group, K, rows < T, DOT)
        acc = _tile_product(acc, left, data, scales, n, group, N, K, BITS, DOT)
    at = (split * T + rows).to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), (rows < T)[:, None] & (n < N)[None, :])


@triton.jit
def grouped_swiglu_kernel(
    x, order, starts, block_expert, block_first, gate, gate_scales, up, up_scales, gate_stride,
    gate_scale_stride, up_stride, up_scale_stride, out, x_divisor, num_experts, N, K,
    GATE_BITS: tl.constexpr, UP_BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """out[position, N] = silu(gate · x) · (up · x); position counts pairs sorted by expert."""
    expert = tl.load(block_expert + tl.program_id(0)).to(tl.int64)
    if expert >= num_experts:
        return
    positions = tl.load(block_first + tl.program_id(0)) + tl.arange(0, BLOCK_M)
    known = positions < tl.load(starts + expert + 1)
    rows = tl.load(order + positions, known, other=0) // x_divisor
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    gate += expert * gate_stride
    gate_scales += expert * gate_scale_stride
    up += expert * up_stride
    up_scales += expert * up_scale_stride
    g = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for group in range(0, tl.cdiv(K, 64)):
        left = _left(x, rows, group, K, known, DOT)
        g = _tile_product(g, left, gate, gate_scales, n, group, N, K, GATE_BITS, DOT)
        u = _tile_product(u, left, up, up_scales, n, group, N, K, UP_BITS, DOT)
    y = g * tl.sigmoid(g) * u
    at = positions.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), known[:, None] & (n < N)[None, :])


@triton.jit
def grouped_down_kernel(
    x, order, starts, block_expert, block_first, data, scales, data_stride, scale_stride, out,
    num_experts, N, K, BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """out[pair, N] = x[position of the pair, K] · W[expert of the pair]ᵀ."""
    expert = tl.load(block_expert + tl.program_id(0)).to(tl.int64)
    if expert >= num_experts:
        return
    positions = tl.load(block_first + tl.program_id(0)) + tl.arange(0, BLOCK_M)
    known = positions < tl.load(starts + expert + 1)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    data += expert * data_stride
    scales += expert * scale_stride
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for group in range(0, tl.cdiv(K, 64)):
        left = _left(x, positions, group, K, known, DOT)
        acc = _tile_product(acc, left, data, scales, n, group, N, K, BITS, DOT)
    pairs = tl.load(order + positions, known, other=0)
    at = pairs.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), known[:, None] & (n < N)[None, :])


@triton.jit
def combine_kernel(
    parts, weights, out, num_rows, N, SPLIT: tl.constexpr, EACH: tl.constexpr,
    WEIGHTED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[t, N] = Σ over a < EACH of weights[t, a] · Σ over splits of parts[split, t·EACH + a, N].

    `num_rows` is that of one split. The order of the sum is fixed: the same bits every time.
    """
    t = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_N,), tl.float32)
    for a in range(EACH):
        row = t * EACH + a
        part = tl.zeros((BLOCK_N,), tl.float32)
        for split in range(SPLIT):
            at = (split * num_rows + row).to(tl.int64) * N + n
            part += tl.load(parts + at, n < N, other=0.0)
        if WEIGHTED:
            part *= tl.load(weights + row)
        acc += part
    tl.store(out + t.to(tl.int64) * N + n, acc.to(out.dtype.element_ty), n < N)
