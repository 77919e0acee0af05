"""How much of a memory-mapped file is in the page cache."""

import ctypes
import mmap
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_CHUNK_BYTES = 256 * 1024**2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def warm(arrays: Iterable[NDArray[np.uint8]]) -> None:
    """Touch every page, so that what fits the memory comes from the page cache afterwards."""
    for array in arrays:
        for start in range(0, array.nbytes, _CHUNK_BYTES):
            array[start : start + _CHUNK_BYTES : mmap.PAGESIZE].max(initial=0)


def resident_share(arrays: Iterable[NDArray[np.uint8]]) -> float:
    """Pages of the arrays that are in memory now, of all their pages; 1.0 where there are none.

    Asks mincore(2), which reads nothing and changes nothing.
    """
    num_pages = num_resident = 0
    for array in arrays:
        resident = _pages(array)
        num_pages += resident.size
        num_resident += int(np.count_nonzero(resident & 1))
    return num_resident / num_pages if num_pages else 1.0


def _pages(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """One byte a page that the array touches; bit 0 says that it is in memory."""
    address = array.ctypes.data
    start = address - address % mmap.PAGESIZE
    length = address + array.nbytes - start
    pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
    if length and _libc.mincore(start, length, pages.ctypes.data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mincore of {length} bytes failed")
    return pages
