"""How fast the cores of one NUMA node read memory of another, or of their own."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autoplace.bench.metrics import Spread
from autoplace.bench.probe_rates import Figure
from autoplace.units import MIB

NODES = Path("/sys/devices/system/node")
BUFFER_BYTES = 128 * MIB
NUM_REPEATS = 5
Words = NDArray[np.uint64]


def probe_numa(nodes: Mapping[int, Sequence[int]]) -> Iterator[Figure]:
    """Bytes a second of every pair of nodes; none where there is one node only.

    `nodes`: node → its CPUs that this process may use. The memory is touched first by the node
    that is to have it.
    """
    if len(nodes) < 2:
        return
    for memory, owners in nodes.items():
        data = _touched_by(owners)
        for node, cpus in nodes.items():
            yield Figure(f"node {node} reads node {memory}", len(cpus), _read(data, cpus), "B/s")


def numa_nodes(folder: Path = NODES) -> Mapping[int, tuple[int, ...]]:
    """Nodes with the CPUs that this process may use."""
    allowed = os.sched_getaffinity(0)
    nodes = {}
    for path in sorted(folder.glob("node[0-9]*")):
        cpus = tuple(cpu for cpu in _cpu_list(path / "cpulist") if cpu in allowed)
        if cpus:
            nodes[int(path.name.removeprefix("node"))] = cpus
    return nodes


def remote_share(figures: Sequence[Figure]) -> float | None:
    """The slowest reading of another node's memory over the slowest of the own; None without."""
    own: list[float] = []
    other: list[float] = []
    for figure in figures:
        words = figure.what.split()
        if words[0] == "node":
            (own if words[1] == words[-1] else other).append(figure.rate.median)
    return min(other) / min(own) if own and other else None


def _cpu_list(path: Path) -> list[int]:
    """`0-3,8` → 0, 1, 2, 3, 8."""
    found: list[int] = []
    for part in filter(None, path.read_text().strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _touched_by(cpus: Sequence[int]) -> Words:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_ones_on, cpus).result()


def _ones_on(cpus: Sequence[int]) -> Words:
    os.sched_setaffinity(0, cpus)  # of this thread, which ends with the pool
    return np.ones(BUFFER_BYTES // 8, np.uint64)


def _read(data: Words, cpus: Sequence[int]) -> Spread:
    """One thread for each CPU, each with its part."""
    parts = np.array_split(data, len(cpus))
    rates = []
    with ThreadPoolExecutor(len(cpus)) as pool:
        for _ in range(NUM_REPEATS):
            begin = time.perf_counter()
            list(pool.map(_sum_on, cpus, parts))
            rates.append(data.nbytes / (time.perf_counter() - begin))
    return Spread(median(rates), min(rates), max(rates), len(rates))


def _sum_on(cpu: int, part: Words) -> int:
    os.sched_setaffinity(0, [cpu])
    return int(part.sum())
