"""Rows of the KV cache, one buffer a layer and kind, stored as float, half, bfloat16 or q8_0."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from autoplace.errors import AutoplaceError
from autoplace.models.allocation import Allocator
from autoplace.models.place import Place
from autoplace.native_decode import CacheRows as NativeRows
from autoplace.weights.ggml import GGMLType

_Q8_0_BLOCK = 32
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_GGML_TYPES = {
    torch.float32: GGMLType.F32,
    torch.float16: GGMLType.F16,
    torch.bfloat16: GGMLType.BF16,
}


class CacheRows(ABC):
    """[context, width] values by position, on one place."""

    @abstractmethod
    def write(self, rows: Tensor, start: int | Tensor) -> None:
        """Store rows [T, width] at positions start … start + T.

        A tensor [1] int64 on the rows' device is a position that the host need not know: one row
        is stored there, and a CUDA graph can hold the step.
        """

    @abstractmethod
    def read(self, end: int, dtype: torch.dtype) -> Tensor:
        """Rows 0 … end as [end, width] in a dtype."""

    @abstractmethod
    def described(self) -> NativeRows:
        """Where they are in host memory, for the kernels."""


class FloatRows(CacheRows):
    """Values as they are, in the cache's own floating-point type."""

    def __init__(self, values: Tensor) -> None:
        self._values = values

    def write(self, rows: Tensor, start: int | Tensor) -> None:
        _store(self._values, rows.to(self._values.dtype), start)

    def read(self, end: int, dtype: torch.dtype) -> Tensor:
        values = self._values[:end]
        if values.dtype is torch.float16 and dtype is torch.bfloat16:
            values = values.float()  # torch converts half to bfloat16 6 times slower than by float
        return values.to(dtype)

    def described(self) -> NativeRows:
        capacity, width = self._values.shape
        ggml_type = _GGML_TYPES[self._values.dtype]
        return NativeRows(self._values.data_ptr(), None, width, capacity, ggml_type)


class Q8Rows(CacheRows):
    """Blocks of 32 signed bytes with one float16 scale, as GGML's q8_0: 34 bytes for 32 values."""

    def __init__(self, values: Tensor, scales: Tensor) -> None:
        self._values = values  # [context, width / 32, 32] int8
        self._scales = scales  # [context, width / 32, 1] float16

    def write(self, rows: Tensor, start: int | Tensor) -> None:
        blocks = rows.float().reshape(len(rows), -1, _Q8_0_BLOCK)
        scales = blocks.abs().amax(-1, keepdim=True) / 127
        inverse = torch.where(scales > 0, 1 / scales, 0)
        _store(self._values, (blocks * inverse).round().to(torch.int8), start)
        _store(self._scales, scales.to(torch.float16), start)

    def read(self, end: int, dtype: torch.dtype) -> Tensor:
        values = self._values[:end].to(dtype) * self._scales[:end].to(dtype)
        return values.flatten(-2)

    def described(self) -> NativeRows:
        capacity, num_blocks, block = self._values.shape
        values, scales = self._values.data_ptr(), self._scales.data_ptr()
        return NativeRows(values, scales, num_blocks * block, capacity, GGMLType.Q8_0)


def _store(target: Tensor, rows: Tensor, start: int | Tensor) -> None:
    if isinstance(start, Tensor):
        target.index_copy_(0, start, rows)
    else:
        target[start : start + len(rows)] = rows


def cache_rows(
    context: int, width: int, kv_type: str, place: Place, allocator: Allocator, *, what: str
) -> CacheRows:
    """A zeroed buffer, declared to the ledger as `kv_cache`."""
    if kv_type == "q8_0":
        return _q8_rows(context, width, place, allocator, what=what)
    values = allocator.empty((context, width), _DTYPES[kv_type], place, kind="kv_cache", what=what)
    return FloatRows(values.zero_())


def _q8_rows(context: int, width: int, place: Place, allocator: Allocator, *, what: str) -> Q8Rows:
    num_blocks, rest = divmod(width, _Q8_0_BLOCK)
    if rest:
        raise AutoplaceError(
            f"kv_type q8_0 needs rows of a multiple of {_Q8_0_BLOCK} values, "
            f"but {what} has {width}; there are bf16, f16, f32"
        )
    shape = (context, num_blocks, _Q8_0_BLOCK)
    values = allocator.empty(shape, torch.int8, place, kind="kv_cache", what=what)
    shape = (context, num_blocks, 1)
    scales = allocator.empty(shape, torch.float16, place, kind="kv_cache", what=what)
    return Q8Rows(values.zero_(), scales.zero_())
