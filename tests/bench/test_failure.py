"""Exceptions told apart by their type, and by text only where torch has one type for all."""

import errno

import pytest
import torch

from autoplace.bench.failure import failed
from autoplace.bench.measure import NotFiniteError
from autoplace.bench.metrics import Basis, Status
from autoplace.errors import AutoplaceError, DeviceOutOfMemoryError
from tests.bench.trial_requests import emulated_machine

LEDGER = DeviceOutOfMemoryError(
    "cuda:1", requested_bytes=10, allocated_bytes=95, budget_bytes=100, what="a weight"
)


@pytest.mark.parametrize(
    ("error", "status", "device"),
    [
        (LEDGER, Status.OUT_OF_MEMORY, "cuda:1"),
        (torch.OutOfMemoryError("CUDA: GPU 1 has 2 GiB"), Status.OUT_OF_MEMORY, "cuda:1"),
        (MemoryError("no"), Status.OUT_OF_MEMORY, "cpu"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Status.OUT_OF_MEMORY, "cpu"),
        (NotFiniteError("NaN"), Status.NOT_FINITE, None),
        (AutoplaceError("no such operator"), Status.REFUSED, None),
        (ValueError("shape"), Status.CRASHED, None),
        (OSError(errno.EIO, "disk"), Status.CRASHED, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)  # fmt: skip
def test_a_failure_is_told_by_its_type(
    error: Exception, status: Status, device: str | None
) -> None:
    outcome = failed(error, emulated_machine())
    assert outcome.status is status
    assert outcome.out_of_memory_device == device
    assert outcome.basis is Basis.EMULATED
    assert outcome.reason


def test_the_ledgers_error_says_how_far_it_went_over() -> None:
    assert failed(LEDGER, emulated_machine()).out_of_memory_bytes == 5


def test_torch_running_out_of_host_memory_is_out_of_memory_on_the_cpu() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    outcome = failed(raised.value, emulated_machine())
    assert outcome.status is Status.OUT_OF_MEMORY
    assert outcome.out_of_memory_device == "cpu"
