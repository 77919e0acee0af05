"""How long work takes on the GPU, and what that is of the GPU's measured limits."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from autoplace.kernels.bench.gpu.report import Limits, Report

_FLUSH_BYTES = 512 << 20
"""Written before every timed run: weights then come from memory, as between layers, and the host
has queued everything by the time the GPU gets to it."""
_REPEATS = 15


def seconds_of(report: Report, work: Callable[[], object]) -> float:
    """Median seconds on the GPU as a CUDA graph, which leaves the host's launches out.

    By the interpreter once, on the clock.
    """
    if report.interpret:
        return wall(work)
    work()
    graph = captured(work)
    return median(_replayed(graph) for _ in range(_REPEATS))


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Work, done before at least once, as a graph."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda:0").zero_()
    start, end = _event(), _event()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    seconds: float = start.elapsed_time(end) / 1e3
    return seconds


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def rate(report: Report, seconds: float, n_bytes: int, flops: int) -> str:
    """Time, rates, and the larger of the two shares of the limits."""
    gbs, tflops = n_bytes / seconds / 1e9, flops / seconds / 1e12
    told = f"{seconds * 1e6:.0f} µs, {gbs:.0f} GB/s, {tflops:.1f} TFLOP/s"
    if report.limits is None:
        return told
    shares = {
        "memory": gbs * 1e9 / report.limits.bytes_per_s,
        "GEMM": tflops * 1e12 / report.limits.flops,
    }
    nearest = max(shares, key=lambda name: shares[name])
    return f"{told}, {100 * shares[nearest]:.0f} % of the {nearest} limit"


def relative_error(got: Tensor, expected: Tensor) -> float:
    """‖got - expected‖ / ‖expected‖; NaN, which no bound admits, where either has one."""
    error: float = ((got.float() - expected).norm() / expected.norm()).item()
    return error


def measure_limits(report: Report) -> Limits:
    """Read 4 GiB by a sum; multiply 8192 × 8192 in bfloat16. Tiny by the interpreter."""
    n, side = (1 << 16, 64) if report.interpret else (1 << 30, 8192)
    values = torch.ones(n, dtype=torch.float32, device=report.device)
    read_s = seconds_of(report, values.sum)
    del values
    left = torch.randn(side, side, device=report.device).bfloat16()
    product_s = seconds_of(report, lambda: left @ left)
    return Limits(4 * n / read_s, 2 * side**3 / product_s)
