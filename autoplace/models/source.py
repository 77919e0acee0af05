"""Weights as they come out of a GGUF: mapped blocks, or float32 rows a chunk at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoplace.models.allocation import Allocator
from autoplace.models.backend import kernels
from autoplace.models.place import HOST, Place, move
from autoplace.placement.workspace import load_chunk_rows, load_transient_bytes
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.gguf_file import GGUFFile


@dataclass(frozen=True)
class TensorSource:
    """One tensor of a GGUF file."""

    gguf: GGUFFile
    info: TensorInfo

    def blocks(self) -> Tensor:
        """The tensor's bytes, uint8 1-D, read-only and memory-mapped: no copy."""
        return _as_tensor(self.gguf.data(self.info.name))

    @property
    def identity(self) -> str:
        """What the bytes are known by: the file's path, size and time, and the place in it."""
        path, offset = self.gguf.location(self.info.name)
        stat = path.stat()
        return f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{offset}:{self.info}"

    @property
    def num_rows(self) -> int:
        return prod(self.info.shape[:-1])

    @property
    def width(self) -> int:
        return self.info.shape[-1]

    def chunks(self, allocator: Allocator) -> Iterator[tuple[int, Tensor]]:
        """First row and float32 [rows, width] of every chunk; the buffer is used again."""
        rows = min(self.num_rows, load_chunk_rows(self.width))
        data = self.gguf.data(self.info.name)
        row_bytes = len(data) // self.num_rows
        n_bytes = load_transient_bytes(self.info.shape)
        with allocator.transient(HOST, n_bytes, what=f"dequantising {self.info.name}"):
            buffer = np.empty(rows * self.width, np.float32)
            for start in range(0, self.num_rows, rows):
                end = min(start + rows, self.num_rows)
                out = buffer[: (end - start) * self.width]
                dequantize_into(data[start * row_bytes : end * row_bytes], self.info.ggml_type, out)
                yield start, torch.from_numpy(out).view(end - start, self.width)

    def fill(self, target: Tensor, place: Place, allocator: Allocator) -> None:
        """Dequantise into a tensor of the same shape on a place, in the target's dtype."""
        rows = target.view(self.num_rows, self.width)
        for start, chunk in self.chunks(allocator):
            rows[start : start + len(chunk)] = move(chunk.to(target.dtype), place)


def dequantize_into(data: NDArray[np.uint8], ggml_type: GGMLType, out: NDArray[np.float32]) -> None:
    """Float32 weights of whole blocks, by the compiled kernel where there is one."""
    native = kernels()
    if native is None:
        dequantize(data, ggml_type, out)
    else:
        native.dequantize(data.ctypes.data, ggml_type, out.size, out.ctypes.data)


def _as_tensor(data: NDArray[np.uint8]) -> Tensor:
    """A tensor over read-only memory; torch has no such notion and would warn."""
    return torch.frombuffer(data.data, dtype=torch.uint8)
