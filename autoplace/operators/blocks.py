"""GGUF blocks as the CPU operators use them: mapped bytes with shape and type."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from autoplace.models.place import put
from autoplace.models.source import dequantize_into
from autoplace.native import Weights
from autoplace.operators.base import OperatorContext, Part, stacked_shape
from autoplace.weights.ggml import GGMLType


@dataclass(frozen=True, eq=False)
class MappedBlocks:
    """A weight [out, in], or the experts of a layer [E, out, in], as its GGUF bytes."""

    data: tuple[Tensor, ...]
    """uint8 1-D, one for all or one an expert; pages come from the file when they are touched."""
    ggml_type: GGMLType
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, context: OperatorContext, part: Part, shape: tuple[int, ...] | None = None
    ) -> "MappedBlocks":
        """Map tensors and declare their bytes as weights of the operator's place."""
        data = tuple(put(source.blocks(), context.place) for source in part)
        n_bytes = sum(blocks.nbytes for blocks in data)
        what = f"{context.path} (mapped)"
        context.allocator.declare(context.place, n_bytes, kind="weights", what=what)
        return cls(data, part[0].info.ggml_type, shape or stacked_shape(part))

    @cached_property
    def weights(self) -> Weights:
        """As the kernels take it; of several tensors, the first."""
        return Weights(self.data[0].data_ptr(), self.ggml_type)

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
        out = np.empty((end - start) * in_features, np.float32)
        dequantize_into(data[start * row_bytes : end * row_bytes].numpy(), self.ggml_type, out)
        return torch.from_numpy(out).view(end - start, in_features)
