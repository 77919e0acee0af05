"""Launches packing: rows of a GGUF tensor on the GPU to Marlin's packed form there."""

import torch
from torch import Tensor

from autoplace.kernels.triton.dequantize import BLOCKS, levels_on
from autoplace.kernels.triton.device import on_device_of
from autoplace.kernels.triton.matrices import GROUP, TILE_ROWS
from autoplace.kernels.triton.pack_kernels import pack_kernel

PLAIN = {0: (torch.float32, 4), 1: (torch.float16, 2), 30: (torch.int16, 2)}
"""GGML type of plain rows (F32, F16, BF16): how the kernel reads an element, and its bytes."""
PACKS = frozenset((*PLAIN, *BLOCKS))
"""GGML types that are packed as they are."""


def pack(
    source: Tensor, ggml_type: int, packed: Tensor, *, first_row: int, shape: tuple[int, int],
    num_bits: int,
) -> None:  # fmt: skip
    """Quantise whole rows, from `first_row` on, into the packed bytes of a matrix [out, in].

    `source`: contiguous uint8, the rows' bytes as in the file; `first_row` is a multiple of 16, and
    so is the number of rows unless they are the last, with which the padding is written too. The
    bytes are those of kernels/cpu's `marlin_pack`, for groups of weights whose largest is finite
    and 0 or at least 2^-120.
    """
    out_features, in_features = shape
    num_rows = _num_rows(source, ggml_type, in_features)
    last = first_row + num_rows == out_features
    padded_out, padded_in = -(-out_features // 64) * 64, -(-in_features // 128) * 128
    code_bytes = padded_out * padded_in * num_bits // 8
    n_bytes = code_bytes + padded_in // GROUP * padded_out * 2
    if (
        num_bits not in (4, 8)
        or (packed.dtype, packed.numel()) != (torch.uint8, n_bytes)
        or not packed.is_contiguous()
        or first_row % TILE_ROWS != 0
        or first_row + num_rows > out_features
        or (num_rows % TILE_ROWS != 0 and not last)
    ):
        raise ValueError(
            f"expected contiguous uint8 [{n_bytes}] and whole tiles of {TILE_ROWS} rows for "
            f"{num_bits}-bit {list(shape)} but got {packed.dtype} {list(packed.shape)} and rows "
            f"{first_row} … {first_row + num_rows}"
        )
    if num_rows == 0:
        return
    block_size, type_size = BLOCKS.get(ggml_type, (1, 1))
    end = padded_out if last else first_row + num_rows
    grid = ((end - first_row) // TILE_ROWS, padded_in // 128)
    plain = source.view(PLAIN[ggml_type][0]) if ggml_type in PLAIN else source
    with on_device_of(packed):
        pack_kernel[grid](
            *(plain, levels_on(packed.device), packed[:code_bytes].view(torch.int32)),
            *(packed[code_bytes:].view(torch.int16), first_row // TILE_ROWS),
            *(num_rows, in_features),
            TYPE=int(ggml_type),
            BLOCK_SIZE=block_size,
            TYPE_SIZE=type_size,
            BITS=num_bits,
            num_warps=4,
            enable_fp_fusion=False,
        )


def _num_rows(source: Tensor, ggml_type: int, in_features: int) -> int:
    if ggml_type not in PACKS:
        raise ValueError(f"expected a GGML type of {sorted(PACKS)} but got {int(ggml_type)}")
    block_size, type_size = BLOCKS.get(ggml_type, (1, PLAIN.get(ggml_type, (None, 0))[1]))
    row_bytes, rest = divmod(in_features * type_size, block_size)
    if (
        source.dtype is not torch.uint8
        or not source.is_contiguous()
        or rest
        or source.numel() % row_bytes
    ):
        raise ValueError(
            f"expected contiguous uint8 rows of {in_features} weights of GGML type "
            f"{int(ggml_type)} but got {source.dtype} {list(source.shape)}"
        )
    return source.numel() // row_bytes
