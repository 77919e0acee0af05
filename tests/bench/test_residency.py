"""The page cache, asked of the kernel."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from autoplace.bench.residency import resident_share, warm


def test_pages_that_were_touched_are_resident_and_dropped_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 4096 * 4)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapped, np.uint8)
    before = resident_share([array])
    if before == 1.0:
        pytest.skip("this file system does not let go of cached pages")
    warm([array])
    assert before < 0.5
    assert resident_share([array]) == 1.0


def test_an_array_that_starts_within_a_page_is_counted_with_that_page() -> None:
    array = np.ones(3 * mmap.PAGESIZE, np.uint8)
    assert resident_share([array[10:20], array[mmap.PAGESIZE - 1 :]]) == 1.0


def test_nothing_mapped_is_all_resident() -> None:
    assert resident_share([]) == 1.0
