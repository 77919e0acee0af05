"""The search: asks for placements, has them run, tells how they ended, until it has enough."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.errors import AutoplaceError
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import Value
from autoplace.predict.zones import Zone, zone
from autoplace.tuner.candidate import Candidate, Preparer, Problem, candidate_key
from autoplace.tuner.drift import Sentinel
from autoplace.tuner.first_placements import FirstPlacement, UserRules, first_placements
from autoplace.tuner.history import TRANSIENT, known_keys, repeated_trial, unknown_neighbour
from autoplace.tuner.learn import NUM_CORRECTED, corrected_best
from autoplace.tuner.objective import (
    describe,
    suggest,
    tell_duplicate,
    tell_failed,
    tell_outcome,
    tell_predicted_not_to_fit,
)
from autoplace.tuner.owner import OWNER, Owner, fail_orphans
from autoplace.tuner.records import SAMPLED, placement_from_json, placement_to_json, record_of
from autoplace.tuner.runner import Runner
from autoplace.tuner.sampler import SamplerSettings, make_sampler

MAX_FAILED_IN_A_ROW = 10
MAX_ATTEMPTS = 3
"""Of a queued placement whose measurement was not valid for reasons outside of it."""


@dataclass(frozen=True)
class SearchSettings:
    """How long to search, and by what."""

    n_trials: int = 30
    """Measured trials that the study shall have; pruned and failed ones do not count."""
    timeout_s: float | None = None
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    prune: bool = True
    """Whether what is predicted not to fit is pruned; otherwise it is run."""
    max_kl: float | None = None
    num_predicted: int = 4
    audit_prunes: int = 0
    """Placements predicted not to fit that are run at the end, to see whether they fail."""
    sentinel_every: int = 8
    """Measured trials between two measurements of the same placement, which show drift."""
    max_pruned_in_a_row: int = 300
    """Pruned trials after which nothing is expected to fit."""


class Listener(Protocol):
    """Is told of the search as it goes."""

    def started(self, number: int, candidate: Candidate, origin: str) -> None: ...

    def finished(self, trial: FrozenTrial, num_measured: int) -> None: ...


class Search:
    """One call's part in a study. Other drivers may work on the same study meanwhile."""

    def __init__(
        self,
        problem: Problem,
        study: optuna.Study,
        runner: Runner,
        settings: SearchSettings,
        *,
        listener: Listener,
        preparer: Preparer | None = None,
        claim: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`claim` keeps other drivers of the study out while a placement is claimed."""
        self._problem = problem
        self._study = study
        self._runner = runner
        self._settings = settings
        self._listener = listener
        self._claim = claim
        self._preparer = preparer or Preparer(problem)
        self._sentinel = Sentinel(study, every=settings.sentinel_every)
        self._failed_in_a_row = 0
        self._pruned_in_a_row = 0
        self._end: str | None = None

    def enqueue_first(
        self, *, user_rules: UserRules | None = None, earlier: Sequence[optuna.Study] = ()
    ) -> None:
        """Queue the obvious and the predicted best placements that the study has not had yet."""
        known = set(known_keys(self._study))
        for first in first_placements(
            self._problem,
            self._preparer,
            user_rules=user_rules,
            earlier=earlier,
            num_predicted=self._settings.num_predicted,
            seed=self._settings.sampler.seed,
        ):
            self._enqueue_unknown(first, known)

    def run(self) -> str:
        """Search until there is a reason to end; return it. Ctrl-C fails the running trial only."""
        started = time.monotonic()
        while self._end is None:
            fail_orphans(self._study)
            if self.num_measured >= self._settings.n_trials:
                return f"{self._settings.n_trials} trials are complete"
            timeout_s = self._settings.timeout_s
            if timeout_s is not None and time.monotonic() - started >= timeout_s:
                return f"{timeout_s:g} s are over"
            self._step()
        return self._end

    @property
    def num_measured(self) -> int:
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return len(trials)

    def _step(self) -> None:
        """One trial, whatever becomes of it."""
        num_trials = len(self._study.get_trials(deepcopy=False))
        self._study.sampler = make_sampler(self._settings.sampler, num_trials=num_trials)
        trial = self._study.ask()
        try:
            trial.set_user_attr(OWNER, Owner.current().as_attribute())
            told = self._try(trial)
        except AutoplaceError as error:
            told = tell_failed(self._study, trial, "stopped", str(error))
            self._end = str(error)
        except KeyboardInterrupt:
            tell_failed(self._study, trial, "interrupted", "interrupted by Ctrl-C")
            raise
        self._count(told)
        self._retry(told)
        self._listener.finished(told, self.num_measured)
        if told.state is TrialState.COMPLETE:
            self._follow_up(told)

    def _follow_up(self, told: FrozenTrial) -> None:
        """What a measured trial is a reason for. Whatever happens here, it has been told."""
        try:
            self._sentinel.after(record_of(told), self._problem, self._preparer, self._runner)
            self._enqueue_corrected()
        except AutoplaceError as error:
            self._end = str(error)

    def _try(self, trial: optuna.Trial) -> FrozenTrial:
        try:
            values, candidate = self._candidate(trial)
        except AutoplaceError as error:
            return tell_failed(self._study, trial, Status.REFUSED.value, str(error))
        describe(trial, candidate, self._problem)
        with self._claim():
            repeated = repeated_trial(self._study, trial.number, candidate.key)
            trial.set_user_attr("claimed", repeated is None)
        if repeated is not None:
            self._enqueue_neighbour(values)
            return tell_duplicate(self._study, trial, repeated)
        overrun_bytes = candidate.plan.overrun_bytes(self._problem.machine)
        verdict = zone(overrun_bytes, self._problem.machine, engine=self._problem.space.engine)
        if self._settings.prune and verdict is Zone.DOES_NOT_FIT:
            return tell_predicted_not_to_fit(self._study, trial, overrun_bytes)
        outcome = self._run(trial, candidate, is_close=verdict is Zone.CLOSE)
        return tell_outcome(
            self._study, trial, outcome, overrun_bytes, max_kl=self._settings.max_kl
        )

    def _run(self, trial: optuna.Trial, candidate: Candidate, *, is_close: bool) -> Outcome:
        """Measure it. A close call has to pass the longest prompt and one token first."""
        self._listener.started(trial.number, candidate, trial.user_attrs["origin"])
        if is_close and self._problem.basis is not Basis.PREDICTED:
            outcome = self._runner.run(candidate.cheap_probe(self._problem))
            if outcome.status is Status.OUT_OF_MEMORY:
                return outcome
        return self._runner.run(candidate.request(self._problem))

    def _candidate(self, trial: optuna.Trial) -> tuple[dict[str, Value] | None, Candidate]:
        """What the trial tries; no values if it was queued as a placement outside the space."""
        queued = trial.user_attrs
        if "placement" in queued:
            placement = placement_from_json(queued["placement"])
            settings = RunSettings(**queued["settings"])
            return None, self._preparer.prepare(placement, settings, rules=queued.get("rules"))
        values = suggest(trial, self._problem.space)
        placement, settings = self._problem.space.decode(values)
        return values, self._preparer.prepare(placement, settings, rules=queued.get("rules"))

    def _enqueue_corrected(self) -> None:
        """Queue what the model finds best now that it is corrected by the trials so far."""
        known = set(known_keys(self._study))
        queued = 0
        for first in corrected_best(self._problem, self._study, self._preparer, self.num_measured):
            if queued < NUM_CORRECTED:
                queued += self._enqueue_unknown(first, known)

    def _enqueue_unknown(self, first: FirstPlacement, known: set[str]) -> bool:
        llama_cpp = self._problem.llama_cpp
        parted = llama_cpp.parted(first.rules) if llama_cpp is not None else ""
        key = candidate_key(first.placement, first.settings, parted)
        if key in known:
            return False
        known.add(key)
        self._enqueue(first, key)
        return True

    def _enqueue(self, first: FirstPlacement, key: str, *, attempt: int = 1) -> None:
        attributes: dict[str, object] = {"origin": first.origin, "key": key, "attempt": attempt}
        if first.rules is not None:
            attributes["rules"] = first.rules
        values = self._problem.space.encode(first.placement, first.settings)
        if values is None:
            attributes["placement"] = placement_to_json(first.placement)
            attributes["settings"] = first.settings.record()
        self._study.enqueue_trial(values or {}, user_attrs=attributes)

    def _enqueue_neighbour(self, values: dict[str, Value] | None) -> None:
        """Make the next trial a new one, so that a sampler that repeats itself cannot stall."""
        known = known_keys(self._study)
        neighbour = unknown_neighbour(
            self._problem.space,
            values,
            set(known),
            seed=len(self._study.get_trials(deepcopy=False)),
        )
        if neighbour is not None:
            self._study.enqueue_trial(dict(neighbour))
        elif not any(trial.state is TrialState.WAITING for trial in known.values()):
            self._end = "every placement of the search space has been tried"

    def _retry(self, told: FrozenTrial) -> None:
        """Queue a placement again that came from the queue and was not measured validly.

        The obvious placements are what the result is compared with: they must not get lost.
        """
        attempt = int(told.user_attrs.get("attempt", 1))
        record = record_of(told)
        lost = told.state is TrialState.FAIL and record.status in TRANSIENT
        if not lost or record.origin == SAMPLED or self._end or attempt == MAX_ATTEMPTS:
            return
        assert record.placement is not None
        assert record.settings is not None
        again = FirstPlacement(record.origin, record.placement, record.settings, record.rules)
        self._enqueue(again, record.key, attempt=attempt + 1)

    def _count(self, told: FrozenTrial) -> None:
        """End a search that gets nowhere."""
        if told.state is TrialState.COMPLETE:
            self._failed_in_a_row = self._pruned_in_a_row = 0
        self._failed_in_a_row += told.state is TrialState.FAIL
        self._pruned_in_a_row += told.state is TrialState.PRUNED
        if self._failed_in_a_row >= MAX_FAILED_IN_A_ROW:
            reason = told.user_attrs["reason"]
            self._end = (
                f"{MAX_FAILED_IN_A_ROW} trials failed one after the other, the last: {reason}"
            )
        elif self._pruned_in_a_row >= self._settings.max_pruned_in_a_row:
            self._end = f"{self._pruned_in_a_row} placements one after the other were pruned"
