"""x · Wᵀ where W is dequantised a few rows at a time: the slow twin of every packed linear."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from autoplace.placement.workspace import load_chunk_rows

Rows = Callable[[int, int], Tensor]
"""First and last row → float32 [rows, in]."""


def linear_by_rows(x: Tensor, rows: Rows, shape: tuple[int, int]) -> Tensor:
    """[T, in] → [T, out] in x's dtype, multiplied in float32; shape is (out, in)."""
    out_features, in_features = shape
    step = load_chunk_rows(in_features)
    wide = x.float()
    parts = [
        functional.linear(wide, rows(start, min(start + step, out_features)))
        for start in range(0, out_features, step)
    ]
    return torch.cat(parts, -1).to(x.dtype)
