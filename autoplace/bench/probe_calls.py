"""What the probe times with a call or two: reading memory, small calls of torch, waking threads."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from torch.nn import functional

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Spread
from autoplace.bench.probe_rates import Figure
from autoplace.bench.threads import set_threads
from autoplace.native import Kernels
from autoplace.units import MIB

READ_BYTES = 256 * MIB
MOST_EMBEDDED = 1024
"""Rows of the table that a token is looked up in: only one is read."""


def read_bandwidth(kernels: Kernels, num_threads: int) -> Figure:
    """Bytes a second that so many threads read from memory."""
    set_threads(num_threads)
    data = np.ones(READ_BYTES, np.uint8)
    seconds = _repeat(lambda: kernels.read(data), 5)
    return Figure("read", num_threads, _rates(READ_BYTES, seconds), "B/s")


def small_calls(spec: ModelSpec, num_threads: int) -> Figure:
    """Seconds of one small torch call on one token, as they stand around the operators."""
    set_threads(num_threads)
    x = torch.ones(1, spec.geometry.hidden, dtype=torch.bfloat16)
    weight = torch.ones(spec.geometry.hidden, dtype=torch.bfloat16)

    def norm() -> None:
        torch.cat((_norm(x, weight), x), -1)

    with torch.inference_mode():
        seconds = [s / 9 for s in _repeat(norm, 200)]
    return Figure("small call", num_threads, _spread(seconds), "s")


def around_a_token(spec: ModelSpec, num_threads: int) -> Figure:
    """Seconds of one token before and behind the layers and lm_head, by calls as the engine's."""
    set_threads(num_threads)
    geometry = spec.geometry
    table = torch.ones(min(geometry.vocab, MOST_EMBEDDED), geometry.hidden, dtype=torch.bfloat16)
    weight = torch.ones(geometry.hidden, dtype=torch.bfloat16)
    logits = torch.ones(1, geometry.vocab, dtype=torch.bfloat16)

    def token() -> None:
        _norm(functional.embedding(torch.tensor([1]), table), weight)
        int(logits.float()[0].argmax())

    with torch.inference_mode():
        return Figure("token", num_threads, _spread(_repeat(token, 100)), "s")


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (wide * scale).to(torch.bfloat16) * weight


def hand_over(kernels: Kernels, num_threads: int) -> Figure:
    """Seconds until all threads have taken up and finished next to nothing."""
    set_threads(num_threads)
    data = np.ones(64 * num_threads, np.uint8)
    return Figure("hand-over", num_threads, _spread(_repeat(lambda: kernels.read(data), 200)), "s")


def _repeat(call: Callable[[], object], times: int) -> list[float]:
    call()
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _rates(work: float, seconds: Sequence[float]) -> Spread:
    return _spread([work / s for s in seconds])


def _spread(values: Sequence[float]) -> Spread:
    ranked = sorted(values)
    quarter = len(ranked) // 4
    return Spread(median(ranked), ranked[quarter], ranked[-1 - quarter], len(ranked))
