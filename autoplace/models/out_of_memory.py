"""Turns a real device's out-of-memory error into ours, with the device and the bytes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autoplace.errors import DeviceOutOfMemoryError

_TRIED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_GPU = re.compile(r"GPU (\d+)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise `DeviceOutOfMemoryError` where torch's CUDA allocator finds no room for `what`."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise out_of_memory(str(error), what) from error


def out_of_memory(message: str, what: str) -> DeviceOutOfMemoryError:
    """Torch's message names the GPU and what it tried to allocate; the driver knows the rest."""
    gpu, tried = _GPU.search(message), _TRIED.search(message)
    index = int(gpu[1]) if gpu else 0
    free, total = torch.cuda.mem_get_info(index) if torch.cuda.is_available() else (0, 0)
    return DeviceOutOfMemoryError(
        f"cuda:{index}",
        requested_bytes=round(float(tried[1]) * _UNITS[tried[2]]) if tried else 0,
        allocated_bytes=total - free,
        budget_bytes=total,
        what=what,
    )
