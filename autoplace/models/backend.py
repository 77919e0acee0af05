"""The compiled CPU kernels, or None: the plain torch twin of everything runs without them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from autoplace import native
from autoplace.native import Kernels
from autoplace.native_decode import DecodeKernels
from autoplace.weights.ggml import GGMLType

log = logging.getLogger(__name__)

DTYPES = {
    torch.float32: GGMLType.F32,
    torch.bfloat16: GGMLType.BF16,
}
"""Activations and plain weights that the kernels take."""

_enabled = True


def kernels() -> Kernels | None:
    """What this machine's compiler built; None where there is no compiler or within a twin."""
    return _load() if _enabled else None


def loaded_kernels() -> Kernels:
    """Those that wrote interleaved weights, for a twin that reads them."""
    loaded = _load()
    assert loaded is not None
    return loaded


def decode_kernels() -> DecodeKernels | None:
    """Those for one token, of the same library."""
    return _load_decode() if _enabled else None


@cache
def _load_decode() -> DecodeKernels | None:
    loaded = _load()
    return None if loaded is None else DecodeKernels(loaded)


@cache
def _load() -> Kernels | None:
    loaded = native.load()
    if loaded is None:
        log.warning("no C++ compiler: the CPU operators run by plain torch, many times slower")
    return loaded


@cache
def _bf16_products_by_torch() -> bool:
    """Whether oneDNN multiplies bf16 here; below AVX-512, torch does by scalar products of rows."""
    return torch.backends.cpu.get_cpu_capability() not in ("AVX2", "DEFAULT")


def torch_multiplies_well(x: Tensor) -> bool:
    """Whether many rows like x are torch's: not bf16 on a CPU without AVX-512, six times slower."""
    return x.is_cuda or x.dtype != torch.bfloat16 or _bf16_products_by_torch()


def for_products(x: Tensor) -> Tensor:
    """x, or x in float32 where torch's products are slow in its own type."""
    return x if torch_multiplies_well(x) else x.float()


@contextmanager
def slow_twin() -> Iterator[None]:
    """Run everything by plain torch, whatever is compiled: the oracle of the kernels' tests."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before
