"""Repeats of one workload as plain numbers: how far apart they are, and whether others disturbed.

Whatever ran it: `measure` for the builtin engine, llama.cpp's own programs for llama.cpp.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import numpy as np

from autoplace.bench.metrics import Spread
from autoplace.bench.request import MeasureSettings
from autoplace.bench.usage import Usage
from autoplace.workload import Workload

MEASURE_SHARE = 0.7
"""Of a trial's time limit, until when a repeat may end; the rest is for what comes after."""
MIN_JUDGED_S = 0.2
"""CPU times are counted in ticks of 10 ms: a shorter measurement cannot be judged by them."""


@dataclass(frozen=True)
class Measurement:
    """Repeats of one workload, and what the machine did meanwhile."""

    prefill_s: tuple[float, ...]
    decode_s: tuple[float, ...]
    """Seconds for all decoded tokens of a repeat."""
    num_decoded: int
    usage: Usage
    """From the first timed repeat to the last."""
    cut_short: bool
    """The time limit came before the repeats had settled."""

    @property
    def decode_tok_per_s(self) -> Spread:
        return spread([self.num_decoded / seconds for seconds in self.decode_s])

    @property
    def prefill_latency_s(self) -> Spread:
        return spread(self.prefill_s)

    @property
    def middle_spread(self) -> float:
        """The wider one of both objectives' `middle_spread`."""
        return max(middle_spread(self.prefill_s), middle_spread(self.decode_s))

    def environment(self) -> dict[str, str | int | float]:
        """What the numbers were measured under, as outcomes record it."""
        return {
            "repeats": len(self.prefill_s),
            "cut_short": int(self.cut_short),
            "middle_spread": round(min(self.middle_spread, 1e9), 4),
            "decode_tok_per_s": round(self.decode_tok_per_s.median, 4),
            "prefill_latency_s": round(self.prefill_latency_s.median, 6),
            "measured_s": round(self.usage.wall_s, 3),
            "wait_share": round(self.usage.wait_share, 3),
            "other_share": round(self.usage.other_share, 3),
            "major_faults": self.usage.major_faults,
        }


def is_contended(usage: Usage, settings: MeasureSettings) -> bool:
    """Whether others kept our threads off the CPUs. Waiting alone may be our own doing."""
    return (
        usage.wall_s >= MIN_JUDGED_S
        and usage.wait_share > settings.max_wait_share
        and usage.other_share > settings.max_other_share
    )


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values), len(values))


def middle_spread(values: Sequence[float]) -> float:
    """Interquartile range over the median. Unlike the extremes it can shrink with more repeats."""
    if len(values) < 2:
        return float("inf")
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def settled(
    prefill_s: Sequence[float],
    decode_s: Sequence[float],
    settings: MeasureSettings,
    usage: Callable[[], Usage],
) -> bool:
    """Whether more repeats would say no more; `usage` is that of the repeats so far."""
    if len(prefill_s) < settings.min_repeats:
        return False
    if len(prefill_s) >= settings.max_repeats:
        return True
    if is_contended(usage(), settings):
        return True
    widest = max(middle_spread(prefill_s), middle_spread(decode_s))
    return widest <= settings.max_relative_spread


def workload_tokens(workload: Workload, vocab_size: int, seed: int) -> tuple[list[int], list[int]]:
    """The prompt and the tokens that are decoded: the output's but the last, at least one."""
    num_decoded = max(1, workload.output_tokens - 1)
    assert workload.prompt_tokens + num_decoded <= workload.context_tokens, workload
    drawn = np.random.default_rng(seed).integers(
        0, vocab_size, workload.prompt_tokens + num_decoded
    )
    tokens = [int(token) for token in drawn]
    return tokens[: workload.prompt_tokens], tokens[workload.prompt_tokens :]
