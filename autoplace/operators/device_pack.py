"""Packs a weight on a real GPU: the file's rows go there a chunk at a time and are quantised there.

No cache of packed weights stands between: a Q4_K row has about the bytes of its packed form, so
reading the packed one from a disk would save nothing.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from autoplace.models.allocation import Allocator
from autoplace.models.place import HOST
from autoplace.models.source import TensorSource
from autoplace.operators.marlin import MarlinFormat
from autoplace.placement.workspace import load_chunk_rows, load_transient_bytes
from autoplace.weights.ggml import GGMLType


def pack_there(
    source: TensorSource, blocks: Tensor, form: MarlinFormat, allocator: Allocator
) -> None:
    """Fill [matrices, bytes] on a GPU, padding too. Declares the host's transient bytes only."""
    from autoplace.kernels.triton.pack import PACKS, pack

    shape = form.out_features, form.in_features
    as_it_is = source.info.ggml_type in PACKS
    chunks = _chunks(source, allocator) if as_it_is else source.chunks(allocator)
    ggml_type = source.info.ggml_type if as_it_is else GGMLType.F32
    for matrix, first_row, rows in chunks:
        there = rows.to(blocks.device).view(torch.uint8).flatten()
        pack(
            *(there, ggml_type, blocks[matrix]),
            first_row=first_row,
            shape=shape,
            num_bits=form.num_bits,
        )


def _chunks(source: TensorSource, allocator: Allocator) -> Iterator[tuple[int, int, Tensor]]:
    """Matrix, first row and mapped bytes [rows, row bytes], cut as `TensorSource.chunks` cuts."""
    step = load_chunk_rows(source.width)
    matrices = source.blocks().view(-1, source.matrix_rows, source.row_bytes)
    n_bytes = load_transient_bytes(source.info.shape)
    with allocator.transient(HOST, n_bytes, what=f"reading {source.info.name}"):
        for matrix, rows in enumerate(matrices):
            for first in range(0, source.matrix_rows, step):
                yield matrix, first, rows[first : first + step]
