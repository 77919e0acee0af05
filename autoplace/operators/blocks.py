"""GGUF blocks as the CPU operators use them: as the file has them, or with rows interleaved."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from autoplace.models.backend import kernels, loaded_kernels
from autoplace.models.huge_pages import host_bytes
from autoplace.models.place import put
from autoplace.models.source import TensorSource, dequantize_into
from autoplace.native import Weights
from autoplace.operators.base import OperatorContext, Part, stacked_shape
from autoplace.weights.ggml import GGMLType

_ROWS = 16
"""Of an interleaved strip."""


@dataclass(frozen=True, eq=False)
class HostBlocks:
    """A weight [out, in], or the experts of a layer [E, out, in], as GGUF blocks."""

    data: tuple[Tensor, ...]
    """uint8 1-D, one for all or one an expert."""
    ggml_type: GGMLType
    shape: tuple[int, ...]
    interleaved: bool
    """Copied with rows by sixteens, which the kernels read faster; else mapped: pages come from the
    file when they are touched. Both take the same bytes."""

    @classmethod
    def of(
        cls, context: OperatorContext, part: Part, shape: tuple[int, ...] | None = None
    ) -> "HostBlocks":
        """Map or copy tensors and declare their bytes as weights of the operator's place."""
        shape = shape or stacked_shape(part)
        ggml_type = part[0].info.ggml_type
        interleaved = context.interleave and _interleave_pays(ggml_type, shape)
        n_bytes = sum(source.info.n_bytes for source in part)
        what = f"{context.path} ({'interleaved' if interleaved else 'mapped'})"
        context.allocator.declare(context.place, n_bytes, kind="weights", what=what)
        load = interleaved_rows if interleaved else TensorSource.blocks
        data = tuple(put(load(source), context.place) for source in part)
        return cls(data, ggml_type, shape, interleaved)

    @cached_property
    def weights(self) -> Weights:
        """As the kernels take it; of several tensors, the first."""
        return Weights(self.data[0].data_ptr(), self.ggml_type, interleaved=self.interleaved)

    def weights_of(self, index: int) -> Weights:
        """One [out, in] matrix as the kernels take it."""
        pointer = self.matrix(index).data_ptr()
        return Weights(pointer, self.ggml_type, interleaved=self.interleaved)

    @property
    def num_matrices(self) -> int:
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def out_features(self) -> int:
        return self.shape[-2]

    def matrix(self, index: int) -> Tensor:
        """The bytes of one [out, in] matrix."""
        if len(self.data) > 1:
            return self.data[index]
        n_bytes = self.data[0].nbytes // self.num_matrices
        return self.data[0][index * n_bytes : (index + 1) * n_bytes]

    def rows(self, start: int, end: int, matrix: int = 0) -> Tensor:
        """Float32 rows start … end of a matrix: [end - start, in]."""
        out_features, in_features = self.shape[-2:]
        data = self.matrix(matrix)
        row_bytes = data.nbytes // out_features
        if self.interleaved:
            first, last = start // _ROWS * _ROWS, -(-end // _ROWS) * _ROWS
            strips = data[first * row_bytes : last * row_bytes]
            blocks = self._restored(strips, last - first)[(start - first) * row_bytes :]
        else:
            blocks = data[start * row_bytes :]
        out = np.empty((end - start) * in_features, np.float32)
        dequantize_into(blocks[: (end - start) * row_bytes].numpy(), self.ggml_type, out)
        return torch.from_numpy(out).view(end - start, in_features)

    def _restored(self, strips: Tensor, num_rows: int) -> Tensor:
        """Whole strips as the file has them."""
        restored = torch.empty_like(strips)
        weights = Weights(strips.data_ptr(), self.ggml_type, interleaved=True)
        loaded_kernels().deinterleave(weights, num_rows, self.shape[-1], restored.data_ptr())
        return restored


def interleaved_rows(source: TensorSource) -> Tensor:
    """A copy of a tensor's blocks with rows by sixteens; the file's pages are given back."""
    native = kernels()
    assert native is not None
    blocks = source.blocks()
    copy = host_bytes(blocks.nbytes)
    weights = Weights(copy.data_ptr(), source.info.ggml_type, interleaved=True)
    native.interleave(blocks.data_ptr(), weights, source.num_rows, source.width)
    source.gguf.release(source.info.name)
    return copy


def _interleave_pays(ggml_type: GGMLType, shape: tuple[int, ...]) -> bool:
    native = kernels()
    return native is not None and native.interleave_pays(ggml_type, shape[-2], shape[-1])
