"""The declared workspace holds what a forward pass really allocates."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoplace.hardware.ledger import Ledger
from tests.engine.tiny import EMULATED, FAMILIES, load_tiny, placed, some_tokens, write_tiny


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of storages that were made within the mode and are alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = {id_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and id_of(leaf) not in before | self._known:
                self._add(leaf)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage, key, n_bytes = tensor.untyped_storage(), id_of(tensor), tensor.nbytes
        self._known.add(key)
        self.now += n_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key, n_bytes)

    def _remove(self, key: int, n_bytes: int) -> None:
        self._known.discard(key)
        self.now -= n_bytes


def id_of(x: torch.Tensor) -> int:
    """A storage by its address in C++, which views of it share."""
    return int(x.untyped_storage()._cdata)


@contextmanager
def live_bytes() -> Iterator[_LiveBytes]:
    with _LiveBytes() as mode:
        yield mode


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_stays_within_the_declared_workspace(
    family: str, dtype: str, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, family, "q8_0")
    ledger = Ledger.of(EMULATED)
    assignment = placed(spec, linear="KLinearTorch", experts="KExpertsCPU")
    model = load_tiny(gguf, spec, assignment, ledger=ledger, dtype=dtype, kv_type="f16")
    tokens = some_tokens(spec, 90)
    with live_bytes() as live:
        model.prefill(tokens)
        for token in tokens[:4]:
            model.decode(token)
    assert 0 < live.peak <= ledger.taken("cpu", "workspace")
