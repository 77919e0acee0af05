"""Chooses, for one product, between the compiled CPU kernel, its plain torch twin and Triton's.

The CPU kernels read host memory: weights of the CPU and of emulated GPUs. On a real GPU packed
weights and experts are Triton's, plain linears are torch's GEMM.
"""

import torch
from torch import Tensor
from torch.nn import functional

from autoplace.models.backend import DTYPES, kernels, torch_multiplies_well
from autoplace.native import Kernels, Weights
from autoplace.operators import gpu_kernels
from autoplace.operators.blocks import HostBlocks
from autoplace.operators.by_rows import linear_by_rows
from autoplace.operators.marlin import MarlinWeight
from autoplace.operators.routed import sum_of_experts, swiglu

BlocksTriple = tuple[HostBlocks, HostBlocks, HostBlocks]
MarlinTriple = tuple[MarlinWeight, MarlinWeight, MarlinWeight]
DenseTriple = tuple[Tensor, Tensor, Tensor]


def linear_from_dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[T, in] · [out, in]ᵀ + bias → [T, out]: one token by the kernel, more by torch's GEMM.

    But for bf16 on a CPU whose torch has no fast product of it.
    """
    native = _kernels_for(x)
    if native is None or (x.shape[0] > 1 and torch_multiplies_well(x)):
        return functional.linear(x, weight, bias)
    y = _linear(native, x, _of_dense(weight), weight.shape[0])
    return y if bias is None else y + bias


def linear_from_blocks(x: Tensor, blocks: HostBlocks) -> Tensor:
    """[T, in] · blocks [out, in]ᵀ → [T, out] in x's dtype."""
    native = _kernels_for(x)
    if native is None:
        return linear_by_rows(x, blocks.rows, (blocks.shape[0], blocks.shape[1]))
    return _linear(native, x, blocks.weights, blocks.out_features)


def linear_from_marlin(x: Tensor, weight: MarlinWeight) -> Tensor:
    """[T, in] · packed [out, in]ᵀ → [T, out] in x's dtype."""
    if x.is_cuda:
        return gpu_kernels.linear_from_marlin(x, weight)
    native = _kernels_for(x)
    if native is None:
        return linear_by_rows(x, weight.rows, (weight.form.out_features, weight.form.in_features))
    return _linear(native, x, weight.weights, weight.out_features)


def experts_from_dense(x: Tensor, experts: Tensor, weights: Tensor, dense: DenseTriple) -> Tensor:
    """[T, D] through experts whose weights are plain tensors [E, out, in]."""
    if x.is_cuda:
        return gpu_kernels.experts_from_dense(x, experts, weights, dense)
    native = _kernels_for(x)
    if native is None:
        return sum_of_experts(
            x, experts, weights, lambda e, rows: swiglu(rows, *(part[e] for part in dense))
        )
    gate, up, down = dense
    parts = _of_dense(gate), _of_dense(up), _of_dense(down)
    return _experts(native, x, experts, weights, parts, (gate.shape[0], gate.shape[1]))


def experts_from_blocks(
    x: Tensor, experts: Tensor, weights: Tensor, blocks: BlocksTriple
) -> Tensor:
    """[T, D] through experts whose weights are GGUF blocks."""
    native = _kernels_for(x)
    if native is None or any(len(part.data) > 1 for part in blocks):
        return sum_of_experts(x, experts, weights, lambda e, rows: _one_of_blocks(rows, e, blocks))
    size = blocks[0].shape[0], blocks[0].out_features
    gate, up, down = blocks
    parts = gate.weights, up.weights, down.weights
    return _experts(native, x, experts, weights, parts, size)


def experts_from_marlin(
    x: Tensor, experts: Tensor, weights: Tensor, packed: MarlinTriple
) -> Tensor:
    """[T, D] through experts whose weights are packed."""
    if x.is_cuda:
        return gpu_kernels.experts_from_marlin(x, experts, weights, packed)
    native = _kernels_for(x)
    if native is None:
        return sum_of_experts(x, experts, weights, lambda e, rows: _from_rows(rows, e, packed))
    gate, up, down = packed
    parts = gate.weights, up.weights, down.weights
    size = len(gate.blocks), gate.out_features
    return _experts(native, x, experts, weights, parts, size)


def _kernels_for(x: Tensor) -> Kernels | None:
    return kernels() if x.device.type == "cpu" else None


def _of_dense(weight: Tensor) -> Weights:
    return Weights(weight.data_ptr(), DTYPES[weight.dtype])


def _linear(native: Kernels, x: Tensor, weights: Weights, out_features: int) -> Tensor:
    x = x.contiguous()
    y = x.new_empty(x.shape[0], out_features)
    dtype = DTYPES[x.dtype]
    shape = (x.shape[0], x.shape[1], out_features)
    native.linear_of(x.data_ptr(), dtype, weights, shape, y.data_ptr(), dtype)
    return y


def _experts(
    native: Kernels,
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    parts: tuple[Weights, Weights, Weights],
    size: tuple[int, int],
) -> Tensor:
    """`size`: number of experts, their intermediate width."""
    x, experts, weights = x.contiguous(), experts.contiguous(), weights.contiguous()
    assert experts.dtype == torch.int64, experts.dtype
    assert weights.dtype == torch.float32, weights.dtype
    out = torch.empty_like(x)
    dtype = DTYPES[x.dtype]
    num_experts, intermediate = size
    gate, up, down = parts
    native.experts(
        x.data_ptr(),
        dtype,
        x.shape[0],
        x.shape[1],
        experts.data_ptr(),
        weights.data_ptr(),
        experts.shape[1],
        num_experts,
        intermediate,
        gate,
        up,
        down,
        out.data_ptr(),
        dtype,
    )
    return out


def _one_of_blocks(x: Tensor, expert: int, blocks: BlocksTriple) -> Tensor:
    """One expert of a file that does not stack them: by the kernel, its matrices apart."""
    native = _kernels_for(x)
    if native is None:
        return _from_rows(x, expert, blocks)
    gate, up, down = ((part.weights_of(expert), part.out_features) for part in blocks)
    hidden = functional.silu(_linear(native, x, *gate)) * _linear(native, x, *up)
    return _linear(native, hidden, *down)


def _from_rows(x: Tensor, expert: int, parts: BlocksTriple | MarlinTriple) -> Tensor:
    """One expert, each of its matrices dequantised to float32 for the while."""
    gate, up, down = (part.rows(0, part.out_features, expert) for part in parts)
    return swiglu(x.float(), gate, up, down)
