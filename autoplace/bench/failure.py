"""Why a trial failed: by the type of the exception first, by its text last."""

import errno
import re
import traceback

import torch

from autoplace.bench.measure import NotFiniteError
from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.errors import AutoplaceError, DeviceOutOfMemoryError
from autoplace.hardware.machine import Machine

CUDA_ERROR_MEMORY_ALLOCATION = 2
"""cudaErrorMemoryAllocation; torch raises it as `AcceleratorError` where the host ran out."""
_GPU_IN_TEXT = re.compile(r"GPU (\d+)")
_HOST_ALLOCATOR = re.compile(r"DefaultCPUAllocator: can't allocate memory.*?allocate (\d+) bytes")


def failed(error: BaseException, machine: Machine) -> Outcome:
    """The outcome of a trial that ended with this exception."""
    basis = Basis.of(machine)
    if isinstance(error, DeviceOutOfMemoryError):
        over = error.allocated_bytes + error.requested_bytes - error.budget_bytes
        return Outcome.out_of_memory(error.device, str(error), basis, over_bytes=over)
    if isinstance(error, NotFiniteError):
        return Outcome(Status.NOT_FINITE, basis, str(error))
    if isinstance(error, AutoplaceError):
        return Outcome(Status.REFUSED, basis, str(error))
    if isinstance(error, torch.OutOfMemoryError):
        found = _GPU_IN_TEXT.search(str(error))
        device = f"cuda:{found[1]}" if found else "cuda:0"
        return Outcome.out_of_memory(
            device, f"out of memory on {device}: the driver has none left", basis
        )
    return _host_failure(error, basis)


def _host_failure(error: BaseException, basis: Basis) -> Outcome:
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return Outcome.out_of_memory("cpu", f"out of memory on cpu: {_one_line(error)}", basis)
    if (
        isinstance(error, torch.AcceleratorError)
        and getattr(error, "error_code", None) == CUDA_ERROR_MEMORY_ALLOCATION
    ):
        return Outcome.out_of_memory(
            "cpu", "out of memory on cpu: no pinned memory was left", basis
        )
    found = _HOST_ALLOCATOR.search(str(error)) if isinstance(error, RuntimeError) else None
    if found:
        reason = f"out of memory on cpu: {found[1]} B could not be allocated"
        return Outcome.out_of_memory("cpu", reason, basis)
    reason = f"{type(error).__name__}: {_one_line(error)}{_where(error)}"
    return Outcome(Status.CRASHED, basis, reason)


def _where(error: BaseException) -> str:
    """Function and line of the innermost frame; no path, since outcomes are stored and shared."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" (in {frames[-1].name}, line {frames[-1].lineno})" if frames else ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
