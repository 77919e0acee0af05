"""Random weights, plain or packed, beside the float64 values that they stand for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from autoplace.kernels.triton.matrices import Matrices
from autoplace.operators.marlin import MarlinFormat, pack_rows_twin, unpack_rows

FORMS = (4, 8, torch.bfloat16, torch.float32)
"""Packed with so many bits, or plain."""
Form = int | torch.dtype


@dataclass(frozen=True)
class Known:
    matrices: Matrices
    values: Tensor
    """[E, out, in] float64 on the host."""


def known_weights(
    count: int, out: int, width: int, form: Form, device: torch.device, *, seed: int = 0
) -> Known:
    """`count` matrices [out, width] with values around 1 / √width."""
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(count, out, width, generator=generator) / width**0.5
    if isinstance(form, torch.dtype):
        rounded = plain.to(form)
        return Known(Matrices.plain(rounded.to(device)), rounded.double())
    layout = MarlinFormat(out, width, form)
    blocks = torch.zeros(count, layout.n_bytes, dtype=torch.uint8)
    for matrix, block in zip(plain, blocks, strict=True):
        pack_rows_twin(matrix.clone(), 0, block, layout)
    values = torch.stack([unpack_rows(0, out, block, layout) for block in blocks])
    return Known(Matrices.packed(blocks.to(device), out, width, form), values.double())
