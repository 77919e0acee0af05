"""A folder of tiny models that all tests of a session share, and a cache of packed weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from autoplace.models.backend import kernels
from autoplace.operators.packed_cache import CACHE_VARIABLE


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Packed weights of a test are its own; compiled kernels are the user's."""
    kernels()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with torch.inference_mode():
        yield
