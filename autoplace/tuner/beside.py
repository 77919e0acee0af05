"""Two engines' best for the same file and workload, measured in turn, and how they compare."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoplace.bench.metrics import Status
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.drift import Reading
from autoplace.tuner.remeasure import TWO_SIGMA, pooled_noise
from autoplace.tuner.runner import Runner
from autoplace.tuner.summary import Summary
from autoplace.units import format_seconds

NUM_ROUNDS = 3
COLUMNS = ("engine", "version", "decode tok/s", "prefill", "request", "measured", "trial")


@dataclass(frozen=True)
class Tuned:
    """One engine's study, with the readings of its best that were taken in turn."""

    problem: Problem
    summary: Summary
    readings: tuple[Reading, ...] = ()

    @property
    def engine(self) -> str:
        return self.problem.space.engine

    @property
    def request_s(self) -> float:
        """Mean seconds of a request; of the study's own figures where nothing was measured."""
        workload = self.problem.workload
        if not self.readings:
            assert self.summary.best is not None
            return self.summary.best.request_s(workload)
        return statistics.fmean(reading.request_s(workload) for reading in self.readings)


def measure_in_turn(
    studies: Sequence[Tuned], runner: Runner, *, on_measure: Callable[[str], None]
) -> tuple[Tuned, ...]:
    """The best of each study, round after round. A measurement that fails is left out."""
    readings: list[list[Reading]] = [[] for _ in studies]
    for turn in range(NUM_ROUNDS * len(studies)):
        index = turn % len(studies)
        problem, best = studies[index].problem, studies[index].summary.best
        assert best is not None
        assert best.record.placement is not None
        assert best.record.settings is not None
        on_measure(studies[index].engine)
        candidate = Preparer(problem).prepare(
            best.record.placement, best.record.settings, rules=best.record.rules
        )
        quick = replace(problem.measure, quality=False)
        outcome = runner.run(replace(candidate.request(problem), measure=quick))
        if outcome.status is Status.OK and outcome.metrics is not None:
            decode, prefill = outcome.metrics.decode_tok_per_s, outcome.metrics.prefill_latency_s
            readings[index].append(Reading(best.record.number, turn, decode.median, prefill.median))
    return tuple(
        replace(study, readings=tuple(own)) for study, own in zip(studies, readings, strict=True)
    )


def rows(studies: Sequence[Tuned]) -> list[tuple[str, ...]]:
    """As `COLUMNS`: means of the readings."""
    return [
        (
            study.engine,
            str(study.summary.key["engine_version"]),
            f"{_mean([r.decode_tok_per_s for r in study.readings]):.4g}",
            format_seconds(_mean([r.prefill_latency_s for r in study.readings])),
            format_seconds(study.request_s),
            f"{len(study.readings)} times",
            str(study.summary.best.record.number) if study.summary.best else "-",
        )
        for study in studies
    ]


def sentence(first: Tuned, second: Tuned) -> str:
    """How many times as fast the first is, with two standard errors from both's readings."""
    if not first.readings or not second.readings:
        return "One of the engines could not be measured again, so they are not compared."
    workload = first.problem.workload
    ratio = second.request_s / first.request_s
    noise = pooled_noise([first.readings, second.readings], workload).request
    error = (
        ratio * TWO_SIGMA * noise * math.sqrt(1 / len(first.readings) + 1 / len(second.readings))
    )
    within = "" if abs(ratio - 1) > error else ": that is within the noise"
    return (
        f"A request takes {first.engine} {format_seconds(first.request_s)} and {second.engine} "
        f"{format_seconds(second.request_s)}: {first.engine} is {ratio:.3f} ± {error:.3f} times as "
        f"fast, measured in turn ({first.summary.basis}){within}."
    )


def markdown(studies: Sequence[Tuned]) -> str:
    """The page that is written beside the studies' own."""
    first, second = studies
    key = first.summary.key
    lines = [
        f"# {key['model']} on {key['hardware']}, {key['workload']}: "
        f"{first.engine} and {second.engine}",
        "",
        sentence(first, second),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| " + " | ".join("---" for _ in COLUMNS) + " |",
        *("| " + " | ".join(row) + " |" for row in rows(studies)),
    ]
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")
