"""Rates of the CPU operators at a model's shapes: weight bytes a second, and flops at prefill.

What is timed is what the engine calls, on weights as it holds them (`probe_subjects`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Spread
from autoplace.bench.probe_subjects import (
    Experts,
    Interleaves,
    Linears,
    head,
    layer_experts,
    layer_linears,
    never_interleaved,
)
from autoplace.native import Kernels

Make = Callable[[ModelSpec, str, Interleaves], Linears | Experts]
"""Model, family, what is interleaved → what is timed."""


@dataclass(frozen=True)
class Figure:
    """One measured rate."""

    what: str
    """`experts blocks decode`"""
    num_threads: int
    rate: Spread
    unit: str
    rows: float = 1.0
    """That meet each matrix: tokens, or tokens an expert."""


def measure_rates(
    spec: ModelSpec,
    kernels: Kernels,
    families: Sequence[str],
    threads: Sequence[int],
    *,
    set_threads: Callable[[int], None],
    prefill_tokens: tuple[int, ...],
    deadline_s: float,
    point_limit_s: float = 1.0,
    interleave: bool = True,
) -> Iterator[Figure]:
    """Decode and prefill rates of every kind and family, by threads; what is late is left out.

    `deadline_s` is on `time.monotonic`'s clock. `interleave`: as the engine is told to.
    """
    interleaves = kernels.interleave_pays if interleave else never_interleaved
    kinds: list[tuple[str, Make, tuple[int, ...]]] = [("linear", layer_linears, prefill_tokens)]
    kinds += [("experts", layer_experts, prefill_tokens)] if spec.moe_layers else []
    kinds += [("head", head, ())]
    num_points = sum(1 + len(longer) for *_, longer in kinds) * len(families) * len(threads)
    for kind, make, longer in kinds:
        for family in families:
            subject = make(spec, family, interleaves)
            for num_threads in threads:
                set_threads(num_threads)
                for tokens in (1, *longer):
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return
                    seconds = _times(
                        partial(subject.run, kernels, tokens),
                        limit_s=min(point_limit_s, left_s / num_points),
                    )
                    num_points = max(1, num_points - 1)
                    yield from _figures(kind, family, num_threads, tokens, subject, seconds)


def _figures(
    kind: str,
    family: str,
    num_threads: int,
    tokens: int,
    subject: Linears | Experts,
    seconds: list[float],
) -> Iterator[Figure]:
    """At one token both the bytes and the work a second, beyond it the work."""
    if tokens == 1:
        rate = _quartiles([subject.n_bytes / s for s in seconds])
        yield Figure(f"{kind} {family} decode", num_threads, rate, "B/s")
    if kind == "head":  # it meets one position only
        return
    work = _quartiles([2 * tokens * subject.num_weights / s for s in seconds])
    rows = tokens * subject.rows_a_token
    yield Figure(f"{kind} {family} prefill", num_threads, work, "flop/s", rows)


def _quartiles(rates: Sequence[float]) -> Spread:
    ranked = sorted(rates)
    quarter = len(ranked) // 4
    return Spread(median(ranked), ranked[quarter], ranked[-1 - quarter], len(ranked))


def _times(call: Callable[[int], None], *, limit_s: float) -> list[float]:
    """Seconds of calls until the limit, at least three, after two for warming up."""
    call(0)
    call(1)
    seconds: list[float] = []
    end = time.monotonic() + limit_s
    while len(seconds) < 3 or (time.monotonic() < end and len(seconds) < 2000):
        begin = time.perf_counter()
        call(len(seconds) + 2)
        seconds.append(time.perf_counter() - begin)
    return seconds
