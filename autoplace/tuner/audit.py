"""Runs a sample of what was pruned: how many would really have failed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import optuna

from autoplace.bench.metrics import Status
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.records import record_of
from autoplace.tuner.runner import Runner

AUDIT = "audit"
"""Study attribute: what became of the pruned placements that were run."""


@dataclass(frozen=True)
class Audited:
    """One pruned placement that was run."""

    trial: int
    status: str
    reason: str

    @property
    def is_false_prune(self) -> bool:
        """It ran: it should not have been pruned."""
        return self.status == Status.OK.value

    @property
    def confirms(self) -> bool:
        """It ran out of memory, as predicted. Anything else says nothing."""
        return self.status == Status.OUT_OF_MEMORY.value


def audit_prunes(
    problem: Problem,
    study: optuna.Study,
    runner: Runner,
    preparer: Preparer,
    *,
    count: int,
    seed: int,
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Audited, ...]:
    """Run up to `count` of the placements predicted not to fit, those not audited before."""
    known = {one.trial for one in audited(study)}
    pruned = [
        record
        for record in map(record_of, study.get_trials(deepcopy=False))
        if record.status == "predicted_not_to_fit" and record.number not in known
    ]
    sample = random.Random(seed).sample(pruned, min(count, len(pruned)))
    quick = replace(problem.measure, min_repeats=1, max_repeats=1, quality=False)
    for i, record in enumerate(sample):
        on_run(i, len(sample))
        assert record.placement is not None
        assert record.settings is not None
        candidate = preparer.prepare(record.placement, record.settings, rules=record.rules)
        outcome = runner.run(replace(candidate.request(problem), measure=quick))
        found = Audited(record.number, outcome.status.value, outcome.reason)
        study.set_user_attr(AUDIT, [vars(one) for one in (*audited(study), found)])
    return audited(study)


def audited(study: optuna.Study) -> tuple[Audited, ...]:
    """What was stored, oldest first."""
    return tuple(
        Audited(int(one["trial"]), str(one["status"]), str(one["reason"]))
        for one in study.user_attrs.get(AUDIT, [])
    )
