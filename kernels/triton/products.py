"""Launches the products: a linear, and the routed experts of a layer.

T tokens, A experts a token, E experts, D model width, F expert width.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from autoplace.kernels.triton import product_kernels as kernels
from autoplace.kernels.triton.device import on_device_of
from autoplace.kernels.triton.matrices import TILE_ROWS, Matrices
from autoplace.kernels.triton.routing import route

MAX_ROWS_TOKENS = 4
"""Up to this many tokens every row is multiplied by itself; more go through tl.dot."""
_PROGRAMS = 512
"""Programs a launch should at least have: about four on every processor of a large GPU."""
_MAX_SPLIT = 8
_COMBINE_N = 256
_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@dataclass(frozen=True)
class _Tiling:
    rows: int
    columns: int
    num_warps: int


def linear(x: Tensor, weight: Matrices) -> Tensor:
    """[T, in] · [out, in]ᵀ → [T, out] in x's dtype; bfloat16 or float32, summed in float32."""
    _check(x, weight)
    num_tokens, n, k = x.shape[0], weight.out_features, weight.in_features
    by_rows = num_tokens <= MAX_ROWS_TOKENS
    tiling = _tiling(num_tokens, x.dtype)
    programs = (
        num_tokens * _cdiv(n, TILE_ROWS)
        if by_rows
        else _cdiv(num_tokens, tiling.rows) * _cdiv(n, tiling.columns)
    )
    split = _split(programs, k)
    out = x.new_empty(num_tokens, n)
    parts = out if split == 1 else x.new_empty(split, num_tokens, n, dtype=torch.float32)
    if num_tokens == 0:
        return out
    with on_device_of(x):
        if by_rows:
            _rows(x, None, weight, parts, x_divisor=1, split=split)
        else:
            _tiles(x, weight, parts, tiling, split)
        if split > 1:
            _combine(parts, None, out, split=split, each=1)
    return out


def experts(
    x: Tensor, ids: Tensor, weights: Tensor, gate: Matrices, up: Matrices, down: Matrices
) -> Tensor:
    """Σ over a of weights[t, a] · down(silu(gate(x)) · up(x)) with expert ids[t, a]: [T, D].

    ids [T, A] int64 and weights [T, A] float32. What lies between gate, up and down is kept in
    x's dtype; the weighted sum is float32.
    """
    _check(x, gate, up)
    _check_routing(x, ids, weights, gate)
    num_tokens, each = ids.shape
    out = torch.empty_like(x)
    if num_tokens == 0:
        return out
    ids, weights = ids.contiguous(), weights.contiguous()
    hidden = x.new_empty(num_tokens * each, gate.out_features)
    by_rows = num_tokens <= MAX_ROWS_TOKENS
    programs = len(hidden) * _cdiv(x.shape[1], TILE_ROWS)
    split = _split(programs, down.in_features) if by_rows else 1
    parts = x.new_empty(split, len(hidden), x.shape[1], dtype=torch.float32)
    with on_device_of(x):
        if by_rows:
            _swiglu_rows(x, ids, gate, up, hidden)
            _rows(hidden, ids, down, parts, x_divisor=1, split=split)
        else:
            _grouped(x, ids, gate, up, down, hidden, parts)
        _combine(parts, weights, out, split=split, each=each)
    return out


def _rows(
    x: Tensor, ids: Tensor | None, weight: Matrices, parts: Tensor, *, x_divisor: int, split: int
) -> None:
    num_rows = len(x) if ids is None else ids.numel()
    grid = (num_rows, _cdiv(weight.out_features, TILE_ROWS), split)
    kernels.rows_kernel[grid](
        *(x, x if ids is None else ids, weight.data, weight.scales),
        *(weight.data.stride(0), weight.scales.stride(0)),
        *(parts, x_divisor, weight.out_features, weight.in_features),
        ROUTED=ids is not None,
        SPLIT=split,
        BITS=weight.bits,
        BLOCK_K=_row_block(weight.bits),
        num_warps=4,
        enable_fp_fusion=True,
    )


def _swiglu_rows(x: Tensor, ids: Tensor, gate: Matrices, up: Matrices, hidden: Tensor) -> None:
    grid = (ids.numel(), _cdiv(gate.out_features, TILE_ROWS))
    kernels.swiglu_rows_kernel[grid](
        *(x, ids, gate.data, gate.scales, up.data, up.scales, *_strides(gate), *_strides(up)),
        *(hidden, ids.shape[1], gate.out_features, gate.in_features),
        GATE_BITS=gate.bits,
        UP_BITS=up.bits,
        BLOCK_K=_row_block(max(gate.bits, up.bits)),
        num_warps=4,
        enable_fp_fusion=True,
    )


def _tiles(x: Tensor, weight: Matrices, parts: Tensor, tiling: _Tiling, split: int) -> None:
    grid = (_cdiv(len(x), tiling.rows), _cdiv(weight.out_features, tiling.columns), split)
    kernels.tiles_kernel[grid](
        *(x, weight.data, weight.scales, parts, len(x), weight.out_features, weight.in_features),
        SPLIT=split,
        BITS=weight.bits,
        BLOCK_M=tiling.rows,
        BLOCK_N=tiling.columns,
        DOT=_dot_dtype(x),
        num_warps=tiling.num_warps,
        enable_fp_fusion=True,
    )


def _grouped(
    x: Tensor,
    ids: Tensor,
    gate: Matrices,
    up: Matrices,
    down: Matrices,
    hidden: Tensor,
    parts: Tensor,
) -> None:
    """Both halves of the experts, pairs sorted by expert."""
    tiling = _tiling(_cdiv(ids.numel(), gate.count), x.dtype, two_matrices=True)
    routing = route(ids, gate.count, tiling.rows)
    sorted_pairs = (routing.order, routing.starts, routing.block_expert, routing.block_first)
    launch = {
        "BLOCK_M": tiling.rows,
        "BLOCK_N": tiling.columns,
        "DOT": _dot_dtype(x),
        "num_warps": tiling.num_warps,
        "enable_fp_fusion": True,
    }
    f, d = gate.out_features, gate.in_features
    kernels.grouped_swiglu_kernel[(routing.num_blocks, _cdiv(f, tiling.columns))](
        *(x, *sorted_pairs, gate.data, gate.scales, up.data, up.scales),
        *(*_strides(gate), *_strides(up), hidden, ids.shape[1], gate.count, f, d),
        GATE_BITS=gate.bits,
        UP_BITS=up.bits,
        **launch,
    )
    kernels.grouped_down_kernel[(routing.num_blocks, _cdiv(d, tiling.columns))](
        *(hidden, *sorted_pairs, down.data, down.scales, *_strides(down), parts),
        *(gate.count, d, f),
        BITS=down.bits,
        **launch,
    )


def _combine(parts: Tensor, weights: Tensor | None, out: Tensor, *, split: int, each: int) -> None:
    num_tokens, n = out.shape
    kernels.combine_kernel[(num_tokens, _cdiv(n, _COMBINE_N))](
        *(parts, out if weights is None else weights, out, num_tokens * each, n),
        SPLIT=split,
        EACH=each,
        WEIGHTED=weights is not None,
        BLOCK_N=_COMBINE_N,
        num_warps=4,
        enable_fp_fusion=True,
    )


def _tiling(num_rows: int, dtype: torch.dtype, *, two_matrices: bool = False) -> _Tiling:
    """Tiles for so many rows of one matrix, small enough to stay in registers (seen by ptxas)."""
    if dtype is torch.float32:
        return _Tiling(16, 32, 8)
    if num_rows <= 16:
        return _Tiling(16, 64, 4)
    if num_rows <= 32:
        return _Tiling(32, 64, 8 if two_matrices else 4)
    if num_rows <= 128 or two_matrices:
        return _Tiling(64, 64, 8)
    return _Tiling(128, 128, 8)


def _split(programs: int, in_features: int) -> int:
    """Shares of k, a power of two, each of at least 256 weights, that give enough programs."""
    split = 1
    while split < _MAX_SPLIT and programs * split < _PROGRAMS and in_features >= 512 * split:
        split *= 2
    return split


def _row_block(bits: int) -> int:
    """Weights of a row that one step of a row product reads."""
    return {0: 128, 4: 512, 8: 256}[bits]


def _dot_dtype(x: Tensor) -> tl.dtype:
    """The interpreter multiplies bfloat16's bits as integers; in float32 the products are equal."""
    return tl.float32 if triton.knobs.runtime.interpret else _DTYPES[x.dtype]


def _strides(weight: Matrices) -> tuple[int, int]:
    return weight.data.stride(0), weight.scales.stride(0)


def _cdiv(n: int, by: int) -> int:
    return -(-n // by)


def _check(x: Tensor, *weights: Matrices) -> None:
    k = weights[0].in_features
    if x.ndim != 2 or x.shape[1] != k or x.dtype not in _DTYPES or not x.is_contiguous():
        raise ValueError(
            f"expected contiguous bfloat16 or float32 [T, {k}] but got {x.dtype} {list(x.shape)} "
            f"with strides {list(x.stride())}"
        )


def _check_routing(x: Tensor, ids: Tensor, weights: Tensor, gate: Matrices) -> None:
    if (
        ids.ndim != 2
        or len(ids) != len(x)
        or ids.dtype is not torch.int64
        or weights.shape != ids.shape
        or weights.dtype is not torch.float32
    ):
        raise ValueError(
            f"expected int64 ids and float32 weights [{len(x)}, A] for {gate.count} experts but "
            f"got {ids.dtype} {list(ids.shape)} and {weights.dtype} {list(weights.shape)}"
        )
