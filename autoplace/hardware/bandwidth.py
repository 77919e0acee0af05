"""How fast this host's memory is: measured once, then kept, so that predictions stay the same."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import psutil

from autoplace.native import cache_dir
from autoplace.units import MIB

BUFFER_BYTES = 32 * MIB
"""Of each of the two buffers of a thread."""
MEMORY_SHARE = 0.1
"""Of what is available: the most that all buffers take together."""
ROUNDS = 4


@cache
def host_bandwidth(model: str, num_cores: int) -> float:
    """Bytes a second that `num_cores` threads copy, reads and writes counted.

    The best of a few rounds; others using the machine make it smaller. Kept in the cache folder by
    model and cores; where that cannot be written, it is measured each time.
    """
    path, key = cache_dir() / "host-bandwidth.json", f"{model}, {num_cores} cores"
    known = _read(path)
    if key not in known:
        known[key] = measure_copy(num_cores)
        with suppress(OSError):
            _write(path, known)
    return known[key]


def measure_copy(num_threads: int) -> float:
    """Bytes a second of copying in `num_threads` threads at once: 0.1 s of a quiet machine."""
    room = int(psutil.virtual_memory().available * MEMORY_SHARE) // (2 * BUFFER_BYTES)
    num_threads = max(1, min(num_threads, room))
    pairs = [
        (np.ones(BUFFER_BYTES, np.uint8), np.zeros(BUFFER_BYTES, np.uint8))
        for _ in range(num_threads)
    ]
    best_s = float("inf")
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(ROUNDS):
            start_s = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            best_s = min(best_s, time.perf_counter() - start_s)
    return 2 * BUFFER_BYTES * num_threads / best_s


def _read(path: Path) -> dict[str, float]:
    """What is kept; nothing where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {key: float(n) for key, n in content.items() if isinstance(n, int | float) and n > 0}


def _write(path: Path, known: dict[str, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(known, indent=2))
    draft.replace(path)
