"""The sentinel: one placement that is measured again every few trials, and shows drift."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import optuna

from autoplace.bench.metrics import Status
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.records import TrialRecord, record_of
from autoplace.tuner.runner import Runner
from autoplace.workload import Workload

SENTINEL = "sentinel"


@dataclass(frozen=True)
class Reading:
    """One measurement of a placement that had been measured before."""

    trial: int
    """Number of the trial that first measured it."""
    after: int
    """How many trials the study had then."""
    decode_tok_per_s: float
    prefill_latency_s: float

    def request_s(self, workload: Workload) -> float:
        return workload.request_s(
            prefill_latency_s=self.prefill_latency_s, decode_tok_per_s=self.decode_tok_per_s
        )


class Sentinel:
    """Measures the study's first measured placement again, outside of the study's trials."""

    def __init__(self, study: optuna.Study, *, every: int) -> None:
        self._study = study
        self._every = every
        self._since = 0

    def after(
        self, record: TrialRecord, problem: Problem, preparer: Preparer, runner: Runner
    ) -> None:
        """To be called after each measured trial; measures when it is time to."""
        self._since += 1
        sentinel = _first_measured(self._study)
        if self._since < self._every or sentinel is None or sentinel.number == record.number:
            return
        self._since = 0
        reading = measured_again(
            sentinel, problem, preparer=preparer, runner=runner, after=record.number
        )
        if reading is not None:
            append_reading(self._study, SENTINEL, reading)


def measured_again(
    record: TrialRecord, problem: Problem, *, preparer: Preparer, runner: Runner, after: int
) -> Reading | None:
    """A measured placement run once more; None where that fails. `after`: see `Reading`."""
    assert record.placement is not None
    assert record.settings is not None
    candidate = preparer.prepare(record.placement, record.settings, rules=record.rules)
    outcome = runner.run(candidate.request(problem))
    if outcome.status is not Status.OK or outcome.metrics is None:
        return None
    metrics = outcome.metrics
    return Reading(
        record.number,
        after,
        metrics.decode_tok_per_s.median,
        metrics.prefill_latency_s.median,
    )


def append_reading(study: optuna.Study, name: str, reading: Reading) -> None:
    stored: list[dict[str, Any]] = list(study.user_attrs.get(name, []))
    study.set_user_attr(name, [*stored, vars(reading)])


def readings(study: optuna.Study, name: str) -> list[Reading]:
    return [Reading(**stored) for stored in study.user_attrs.get(name, [])]


def drift(first: TrialRecord, sentinels: Sequence[Reading]) -> float | None:
    """Change of the sentinel's decode rate from its trial to its last reading, as a share."""
    if not sentinels:
        return None
    return sentinels[-1].decode_tok_per_s / first.metrics.decode_tok_per_s.median - 1


def _first_measured(study: optuna.Study) -> TrialRecord | None:
    for trial in study.get_trials(deepcopy=False):
        record = record_of(trial)
        if record.measured:
            return record
    return None
