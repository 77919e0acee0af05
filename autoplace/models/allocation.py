"""Tensors that stay: each is declared to the ledger before it is made, from its own bytes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor

from autoplace.hardware.ledger import Ledger
from autoplace.models.out_of_memory import translated
from autoplace.models.place import Place, put


class Allocator:
    """Makes tensors on places within the ledger's budgets; gives their bytes back at the end."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._declared: list[tuple[str, int, str]] = []

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, place: Place, *, kind: str, what: str
    ) -> Tensor:
        """An uninitialised tensor. Raise `DeviceOutOfMemoryError` where the budget is too small."""
        n_bytes = prod(shape) * dtype.itemsize
        self.declare(place, n_bytes, kind=kind, what=what)
        with translated(what):
            tensor = torch.empty(tuple(shape), dtype=dtype, device=place.torch_device)
        assert tensor.nbytes == n_bytes, (tensor.nbytes, n_bytes)
        return put(tensor, place)

    def declare(self, place: Place, n_bytes: int, *, kind: str, what: str) -> None:
        """Bytes that something else holds: a memory-mapped block, or room for activations."""
        self._ledger.allocate(place.name, n_bytes, kind=kind, what=what)
        self._declared.append((place.name, n_bytes, kind))

    @contextmanager
    def transient(self, place: Place, n_bytes: int, *, what: str) -> Iterator[None]:
        """Bytes that are needed only while a tensor loads."""
        with self._ledger.transient(place.name, n_bytes, what=what):
            yield

    def close(self) -> None:
        """Give back everything that was declared through this allocator."""
        for device, n_bytes, kind in self._declared:
            self._ledger.free(device, n_bytes, kind=kind)
        self._declared.clear()
