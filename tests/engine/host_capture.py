"""Stands in for a CUDA graph on host memory: keeps operations, and does them on the same tensors.

Like a graph it bakes in every Python number and every address, and refuses to read a value.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoplace.models.place import Place

READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


class _Keep(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: list[Callable[[], None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        assert func not in READS, f"a graph cannot hold {func}"
        result = func(*args, **(kwargs or {}))
        self.kept.append(lambda: _again(func, args, kwargs or {}, result))
        return result


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
            old.copy_(new)


class HostCapture:
    """A `Capture`. Kernels that take pointers are not seen: run within `slow_twin`."""

    def __init__(self, place: Place) -> None:
        self._keep = _Keep()

    def begin(self) -> None:
        self._keep.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        self._keep.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def replay(self) -> None:
        for operation in self._keep.kept:
            operation()

    @property
    def num_operations(self) -> int:
        return len(self._keep.kept)
