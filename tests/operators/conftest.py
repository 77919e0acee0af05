"""Packed weights of a test are its own; everything runs without autograd, as in the engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from autoplace.models.backend import kernels
from autoplace.operators.packed_cache import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kernels()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with torch.inference_mode():
        yield
