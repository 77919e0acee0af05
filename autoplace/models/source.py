"""Weights as they come out of a GGUF: mapped blocks, or float32 rows a chunk at a time."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoplace.models.allocation import Allocator
from autoplace.models.backend import DTYPES, kernels
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

    @property
    def matrix_rows(self) -> int:
        """Rows of one matrix: of a linear, or of one expert of a stack."""
        return self.info.shape[-2] if len(self.info.shape) > 1 else 1

    def chunks(self, allocator: Allocator) -> Iterator[tuple[int, int, Tensor]]:
        """Matrix, first row and float32 [rows, width] of every chunk; the buffer is used again.

        After the last one the file's pages are given back.
        """
        n_bytes = load_transient_bytes(self.info.shape)
        rows = min(self.matrix_rows, load_chunk_rows(self.width))
        data = self.gguf.data(self.info.name).reshape(-1, self.matrix_rows, self.row_bytes)
        with allocator.transient(HOST, n_bytes, what=f"dequantising {self.info.name}"):
            buffer = np.empty((rows, self.width), np.float32)
            for matrix in range(len(data)):
                for start in range(0, self.matrix_rows, rows):
                    blocks = data[matrix, start : start + rows]
                    out = buffer[: len(blocks)]
                    dequantize_into(blocks.reshape(-1), self.info.ggml_type, out.reshape(-1))
                    yield matrix, start, torch.from_numpy(out)
        self.gguf.release(self.info.name)

    def fill(self, target: Tensor, place: Place, allocator: Allocator) -> None:
        """Dequantise into a tensor of the same shape, or a view, on a place, in its dtype."""
        if place.runs_on_host and target.is_contiguous() and kernels() is not None:
            self._fill_directly(target, allocator)
            return
        matrices = target if target.ndim == 3 else target.view(1, -1, self.width)
        for matrix, start, chunk in self.chunks(allocator):
            part = move(chunk.to(target.dtype), place)
            matrices[matrix, start : start + len(chunk)] = part

    def _fill_directly(self, target: Tensor, allocator: Allocator) -> None:
        """By the kernel, without a buffer; declared as if there were one."""
        native = kernels()
        assert native is not None
        n_bytes = load_transient_bytes(self.info.shape)
        with allocator.transient(HOST, n_bytes, what=f"dequantising {self.info.name}"):
            source, ggml_type = self.gguf.data(self.info.name), self.info.ggml_type
            n, dtype = self.info.n_elements, DTYPES[target.dtype]
            native.dequantize(source.ctypes.data, ggml_type, n, target.data_ptr(), dtype)
        self.gguf.release(self.info.name)

    @property
    def row_bytes(self) -> int:
        """Of one row as the file has it."""
        return self.info.n_bytes // self.num_rows


def dequantize_into(data: NDArray[np.uint8], ggml_type: GGMLType, out: NDArray[np.float32]) -> None:
    """Float32 weights of whole blocks, by the compiled kernel where there is one."""
    native = kernels()
    if native is None:
        dequantize(data, ggml_type, out)
    else:
        native.dequantize(data.ctypes.data, ggml_type, out.size, out.ctypes.data)


def _as_tensor(data: NDArray[np.uint8]) -> Tensor:
    """A tensor over read-only memory. Torch has no such notion and warns; nothing writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(data.data, dtype=torch.uint8)
