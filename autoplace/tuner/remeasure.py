"""The front measured again, in turn with the best obvious placement, and what survives of it."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import optuna

from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.drift import SENTINEL, Reading, append_reading, measured_again, readings
from autoplace.tuner.llama_cpp import FITTED
from autoplace.tuner.pareto import best_of, candidates, pareto_front
from autoplace.tuner.records import OBVIOUS, TrialRecord
from autoplace.tuner.runner import Runner
from autoplace.workload import Workload

REMEASURED = "remeasured"
MAX_FRONT = 4
NUM_ROUNDS = 2
TWO_SIGMA = 2.0


@dataclass(frozen=True)
class Noise:
    """Relative standard deviation of one measurement, pooled over what was measured repeatedly."""

    decode: float
    prefill: float
    request: float


@dataclass(frozen=True)
class Remeasured:
    """One placement's final figures: means of the measurements made again, side by side."""

    record: TrialRecord
    decode_tok_per_s: float
    prefill_latency_s: float
    n: int
    """Measurements that the means are of; 0 where only the search's own figures are there."""
    survives: bool = True
    """Whether no other placement is better by more than the noise."""

    def request_s(self, workload: Workload) -> float:
        return workload.request_s(
            prefill_latency_s=self.prefill_latency_s, decode_tok_per_s=self.decode_tok_per_s
        )


def to_remeasure(records: Sequence[TrialRecord], workload: Workload) -> list[TrialRecord]:
    """At most four points of the front, the best for the workload among them, the best obvious
    placement and llama.cpp's own `--fit`, each once."""
    eligible = candidates(records)
    front = pareto_front(eligible)
    chosen = best_of(front, workload)[:MAX_FRONT]
    obvious = best_of([record for record in eligible if record.is_obvious], workload)[:1]
    fitted = [record for record in eligible if is_fitted(record)][:1]
    for record in (*obvious, *fitted):
        chosen += [record] if record not in chosen else []
    return chosen


def is_fitted(record: TrialRecord) -> bool:
    """Whether it is what llama.cpp's `--fit` comes to."""
    return record.is_obvious and FITTED in record.origin.removeprefix(OBVIOUS).split(", ")


def remeasure(
    problem: Problem,
    study: optuna.Study,
    runner: Runner,
    preparer: Preparer,
    chosen: Sequence[TrialRecord],
    *,
    on_measure: Callable[[int, int], None],
) -> None:
    """Measure the chosen placements in turn, round after round, and store the readings.

    `on_measure(done, total)` is called before each. A measurement that fails is left out.
    """
    total = NUM_ROUNDS * len(chosen)
    session = len(study.get_trials(deepcopy=False))
    for i in range(total):
        record = chosen[i % len(chosen)]
        on_measure(i, total)
        reading = measured_again(record, problem, preparer=preparer, runner=runner, after=session)
        if reading is not None:
            append_reading(study, REMEASURED, reading)


def final_figures(
    study: optuna.Study, chosen: Sequence[TrialRecord], workload: Workload
) -> tuple[list[Remeasured], Noise]:
    """Means of the last readings of each chosen placement; those that are beaten are marked."""
    last = _last_readings(study)
    if not all(record.number in last for record in chosen):
        last = {}  # the front has changed since: figures of the search only, so that all compare
    figures = [_figures(record, last.get(record.number, [])) for record in chosen]
    noise = pooled_noise([*last.values(), *_sentinel_group(study)], workload)
    return [
        replace(one, survives=not any(_beats(other, one, noise) for other in figures))
        for one in figures
    ], noise


def _last_readings(study: optuna.Study) -> dict[int, list[Reading]]:
    """Trial number → its readings of the last time that the front was measured again."""
    everything = readings(study, REMEASURED)
    last = max((reading.after for reading in everything), default=0)
    grouped: dict[int, list[Reading]] = defaultdict(list)
    for reading in everything:
        if reading.after == last:
            grouped[reading.trial].append(reading)
    return grouped


def pooled_noise(groups: Sequence[Sequence[Reading]], workload: Workload) -> Noise:
    """Over groups of readings of one placement each; zero where nothing was measured twice."""
    return Noise(
        decode=_deviation([[r.decode_tok_per_s for r in group] for group in groups]),
        prefill=_deviation([[r.prefill_latency_s for r in group] for group in groups]),
        request=_deviation([[r.request_s(workload) for r in group] for group in groups]),
    )


def gain(
    best: Remeasured, baseline: Remeasured, noise: Noise, workload: Workload
) -> tuple[float, float]:
    """How many times less a request takes than with the baseline, and twice the error of that."""
    ratio = baseline.request_s(workload) / best.request_s(workload)
    if best.record.number == baseline.record.number:
        return 1.0, 0.0
    return ratio, ratio * _margin(noise.request, best, baseline)


def _figures(record: TrialRecord, group: Sequence[Reading]) -> Remeasured:
    if not group:
        metrics = record.metrics
        return Remeasured(
            record, metrics.decode_tok_per_s.median, metrics.prefill_latency_s.median, n=0
        )
    return Remeasured(
        record,
        statistics.fmean(reading.decode_tok_per_s for reading in group),
        statistics.fmean(reading.prefill_latency_s for reading in group),
        n=len(group),
    )


def _beats(one: Remeasured, other: Remeasured, noise: Noise) -> bool:
    """Better in one objective by more than the noise, and in the other not worse by more."""
    decode = one.decode_tok_per_s / other.decode_tok_per_s - 1
    prefill = other.prefill_latency_s / one.prefill_latency_s - 1
    decode_margin = _margin(noise.decode, one, other)
    prefill_margin = _margin(noise.prefill, one, other)
    not_worse = decode >= -decode_margin and prefill >= -prefill_margin
    return not_worse and (decode > decode_margin or prefill > prefill_margin)


def _margin(deviation: float, one: Remeasured, other: Remeasured) -> float:
    """Two standard errors of the ratio of two means."""
    return TWO_SIGMA * deviation * math.sqrt(1 / max(one.n, 1) + 1 / max(other.n, 1))


def _deviation(groups: Sequence[Sequence[float]]) -> float:
    """Relative standard deviation within groups; groups of one say nothing."""
    squares, freedom = 0.0, 0
    for group in groups:
        mean = statistics.fmean(group) if group else 1.0
        squares += sum((value / mean - 1) ** 2 for value in group)
        freedom += max(len(group) - 1, 0)
    return math.sqrt(squares / freedom) if freedom else 0.0


def _sentinel_group(study: optuna.Study) -> list[list[Reading]]:
    group = readings(study, SENTINEL)
    return [group] if group else []
