"""Chooses, for one product, between the compiled CPU kernel and its plain torch twin."""

from torch import Tensor

from autoplace.operators.blocks import MappedBlocks
from autoplace.operators.by_rows import linear_by_rows
from autoplace.operators.marlin import MarlinWeight
from autoplace.operators.routed import sum_of_experts, swiglu

BlocksTriple = tuple[MappedBlocks, MappedBlocks, MappedBlocks]
MarlinTriple = tuple[MarlinWeight, MarlinWeight, MarlinWeight]
DenseTriple = tuple[Tensor, Tensor, Tensor]


def linear_from_blocks(x: Tensor, blocks: MappedBlocks) -> Tensor:
    """[T, in] · blocks [out, in]ᵀ → [T, out] in x's dtype."""
    return linear_by_rows(x, blocks.rows, (blocks.shape[0], blocks.shape[1]))


def linear_from_marlin(x: Tensor, weight: MarlinWeight) -> Tensor:
    """[T, in] · packed [out, in]ᵀ → [T, out] in x's dtype."""
    return linear_by_rows(x, weight.rows, (weight.form.out_features, weight.form.in_features))


def experts_from_dense(x: Tensor, experts: Tensor, weights: Tensor, dense: DenseTriple) -> Tensor:
    """[T, D] through experts whose weights are plain tensors [E, out, in]."""
    return sum_of_experts(
        x, experts, weights, lambda e, rows: swiglu(rows, *(part[e] for part in dense))
    )


def experts_from_blocks(
    x: Tensor, experts: Tensor, weights: Tensor, blocks: BlocksTriple
) -> Tensor:
    """[T, D] through experts whose weights are GGUF blocks."""
    return sum_of_experts(x, experts, weights, lambda e, rows: _from_rows(rows, e, blocks))


def experts_from_marlin(
    x: Tensor, experts: Tensor, weights: Tensor, packed: MarlinTriple
) -> Tensor:
    """[T, D] through experts whose weights are packed."""
    return sum_of_experts(x, experts, weights, lambda e, rows: _from_rows(rows, e, packed))


def _from_rows(x: Tensor, expert: int, parts: BlocksTriple | MarlinTriple) -> Tensor:
    """One expert, each of its matrices dequantised to float32 for the while."""
    gate, up, down = (part.rows(0, part.out_features, expert) for part in parts)
    return swiglu(x.float(), gate, up, down)
