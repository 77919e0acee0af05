"""What a real GPU's memory, links, launches and hand-overs take, by small timed calls.

No GPU was at hand when this was written: its tests run where there is one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch

from autoplace.bench.metrics import Spread
from autoplace.bench.probe_rates import Figure
from autoplace.hardware.machine import Device, Machine
from autoplace.units import MIB

LARGE_BYTES = 256 * MIB
SMALL_BYTES = 4096
"""About the hidden state of one token."""
NUM_LAUNCHES = 200


def probe_gpus(machine: Machine, num_threads: int) -> Iterator[Figure]:
    """Figures of every real GPU and of every link; none on an emulated machine."""
    if machine.emulated:
        return
    for gpu in machine.gpus:
        for what, unit, values in _of_one(gpu):
            yield Figure(what, num_threads, _spread(values), unit)
    for source in machine.gpus:
        for target in machine.gpus:
            if source is not target:
                yield from _link(source.name, target.name, num_threads)


def _of_one(gpu: Device) -> Iterator[tuple[str, str, list[float]]]:
    """Its memory (a copy reads and writes), its launches, and the host's hand-over."""
    name = gpu.name
    big = torch.empty(LARGE_BYTES, dtype=torch.uint8, device=name)
    other = torch.empty_like(big)
    seconds = _timed(lambda: other.copy_(big), name, 20)
    yield f"memory {name}", "B/s", [2 * LARGE_BYTES / s for s in seconds]
    x = torch.ones(SMALL_BYTES // 2, dtype=torch.bfloat16, device=name)
    seconds = _timed(lambda: _launches(x), name, 10)
    yield f"launch {name}", "s", [s / NUM_LAUNCHES for s in seconds]
    pinned = torch.empty(SMALL_BYTES // 2, dtype=torch.bfloat16, pin_memory=True)
    seconds = _timed(lambda: _there_and_back(x, pinned), name, 100)
    yield f"hand-over {name}", "s", [s / 2 for s in seconds]
    for direction, pin in (("pinned", True), ("pageable", False)):
        host = torch.empty(LARGE_BYTES, dtype=torch.uint8, pin_memory=pin)
        seconds = _timed(lambda host=host: big.copy_(host, non_blocking=True), name, 5)  # type: ignore[misc]
        yield f"cpu to {name}, {direction}", "B/s", [LARGE_BYTES / s for s in seconds]
        seconds = _timed(lambda host=host: host.copy_(big, non_blocking=True), name, 5)  # type: ignore[misc]
        yield f"{name} to cpu, {direction}", "B/s", [LARGE_BYTES / s for s in seconds]


def _link(source: str, target: str, num_threads: int) -> Iterator[Figure]:
    """Between two GPUs: bandwidth, and the latency of a small hop."""
    here = torch.empty(LARGE_BYTES // 4, dtype=torch.uint8, device=source)
    there = torch.empty(LARGE_BYTES // 4, dtype=torch.uint8, device=target)
    seconds = _timed(lambda: there.copy_(here), target, 5)
    rates = [LARGE_BYTES // 4 / s for s in seconds]
    yield Figure(f"{source} to {target}", num_threads, _spread(rates), "B/s")
    small, end = here[:SMALL_BYTES], there[:SMALL_BYTES]
    seconds = _timed(lambda: end.copy_(small), target, 100)
    yield Figure(f"hop {source} to {target}", num_threads, _spread(seconds), "s")


def _launches(x: torch.Tensor) -> None:
    for _ in range(NUM_LAUNCHES):
        x.add_(0)


def _there_and_back(x: torch.Tensor, pinned: torch.Tensor) -> None:
    """As a layer whose experts are on the host does it."""
    pinned.copy_(x, non_blocking=True)
    torch.cuda.synchronize(x.device)
    x.copy_(pinned, non_blocking=True)


def _timed(call: Callable[[], object], device: str, times: int) -> list[float]:
    """Seconds of calls, each until the device is done, after two for warming up."""
    seconds = []
    for number in range(times + 2):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        if number >= 2:
            seconds.append(time.perf_counter() - begin)
    return seconds


def _spread(values: Sequence[float]) -> Spread:
    ranked = sorted(values)
    quarter = len(ranked) // 4
    return Spread(median(ranked), ranked[quarter], ranked[-1 - quarter], len(ranked))
