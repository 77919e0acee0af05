"""Gives back the pages of a file that were read once and are not needed again."""

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

_MADV_DONTNEED = 4


def release(data: NDArray[np.uint8]) -> None:
    """Drop whole pages of a mapped array from this process; they stay in the page cache.

    A later read maps them again. Does nothing where the system cannot.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return
    page = mmap.PAGESIZE
    first = -(-data.ctypes.data // page) * page
    last = (data.ctypes.data + data.nbytes) // page * page
    if last > first:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_DONTNEED)
