"""Progress on standard error: trials, the best so far, and when it will be done."""

import time
from collections.abc import Mapping

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from autoplace.tuner.candidate import Candidate
from autoplace.tuner.pareto import request_s
from autoplace.tuner.records import TrialRecord, record_of
from autoplace.tuner.remeasure import Remeasured
from autoplace.units import format_seconds
from autoplace.workload import Workload

OUTCOMES: Mapping[TrialState, str] = {
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class SearchProgress:
    """A bar on a terminal, a line per trial elsewhere."""

    def __init__(self, workload: Workload, *, n_trials: int, timeout_s: float | None) -> None:
        self._workload = workload
        self._n_trials = n_trials
        self._timeout_s = timeout_s
        self._started = time.monotonic()
        self._measured_here = 0
        self._best: TrialRecord | None = None
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("tune"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("tune", total=n_trials, status="starting")

    def __enter__(self) -> "SearchProgress":
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def resume(self, best: Remeasured | None) -> None:
        """The best of the calls before this one."""
        if best is not None:
            self._best = best.record

    def started(self, number: int, candidate: Candidate, origin: str) -> None:
        self._progress.update(self._task, status=f"trial {number}: {origin}{self._tail(0)}")

    def finished(self, trial: FrozenTrial, num_measured: int) -> None:
        record = record_of(trial)
        if record.measured:
            self._measured_here += 1
            if record.feasible and (
                self._best is None or self._time(record) < self._time(self._best)
            ):
                self._best = record
        left = max(self._n_trials - num_measured, 0)
        self._progress.update(self._task, completed=num_measured, status=self._tail(left))
        if trial.user_attrs.get("status") not in ("duplicate", "predicted_not_to_fit"):
            self._console.print(self._line(record, num_measured), soft_wrap=True)

    def remeasuring(self, done: int, total: int) -> None:
        if done == 0:
            self._console.print(f"measuring the best again, {total} measurements")
        self._progress.update(self._task, status=f"measuring the best again, {done + 1} of {total}")

    def _line(self, record: TrialRecord, num_measured: int) -> str:
        head = f"trial {record.number} ({record.origin}): {_how(record)}"
        if not record.measured:
            return f"{head}: {record.reason}"
        metrics = record.metrics
        return (
            f"{head}: {metrics.decode_tok_per_s.median:.4g} tok/s, prefill "
            f"{format_seconds(metrics.prefill_latency_s.median)}, request "
            f"{format_seconds(self._time(record))}; {num_measured}/{self._n_trials}"
            f"{self._tail(max(self._n_trials - num_measured, 0))}"
        )

    def _tail(self, left: int) -> str:
        """Best so far, and the time that the trials left will take at the pace so far."""
        parts = []
        if self._best is not None:
            parts.append(
                f"best {format_seconds(self._time(self._best))} (trial {self._best.number})"
            )
        if left and self._measured_here:
            elapsed_s = time.monotonic() - self._started
            eta_s = elapsed_s / self._measured_here * left
            if self._timeout_s is not None:
                eta_s = min(eta_s, max(self._timeout_s - elapsed_s, 0.0))
            parts.append(f"ETA {format_seconds(eta_s)}")
        return "".join(f"; {part}" for part in parts)

    def _time(self, record: TrialRecord) -> float:
        return request_s(record, self._workload)


def _how(record: TrialRecord) -> str:
    """`measured`, `emulated` or `predicted` for figures, so that none is taken for another."""
    if record.measured and record.outcome is not None:
        return record.outcome.basis.value
    return OUTCOMES[record.state]
