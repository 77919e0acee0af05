"""Which placements a study has had already, so that none completes twice."""

import random
from collections.abc import Mapping

import optuna
from optuna.trial import FrozenTrial, TrialState

from autoplace.bench.metrics import Status
from autoplace.placement.space import SearchSpace, Value
from autoplace.tuner.candidate import candidate_key

TRANSIENT = frozenset(
    {"lost", "interrupted", "stopped"}
    | {status.value for status in (Status.CONTENDED, Status.COLD, Status.UNSTABLE)}
)
"""Ends that say nothing of the placement: it may be tried again."""
MAX_DRAWS = 200


def blocks_repeats(trial: FrozenTrial) -> bool:
    """Whether a trial is, or was, the one try that its placement gets."""
    if "duplicate_of" in trial.user_attrs:
        return False
    if trial.state is TrialState.FAIL:
        return trial.user_attrs.get("status") not in TRANSIENT
    return True


def known_keys(study: optuna.Study) -> dict[str, FrozenTrial]:
    """Placement key → the trial that has it: finished, running or queued."""
    known: dict[str, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False):
        key = trial.user_attrs.get("key")
        if key is not None and blocks_repeats(trial):
            known.setdefault(key, trial)
    return known


def repeated_trial(study: optuna.Study, number: int, key: str) -> FrozenTrial | None:
    """The trial, if any, that trial `number` with this key repeats; queued ones have not begun.

    To be asked, and its answer stored, while no other driver does: of two running trials with the
    same key only the first to ask goes on.
    """
    for trial in study.get_trials(deepcopy=False):
        if (
            trial.number != number
            and trial.user_attrs.get("key") == key
            and trial.state is not TrialState.WAITING
            and trial.user_attrs.get("claimed")
            and blocks_repeats(trial)
        ):
            return trial
    return None


def unknown_neighbour(
    space: SearchSpace, values: Mapping[str, Value] | None, known: set[str], *, seed: int
) -> dict[str, Value] | None:
    """Values near the given ones for a placement that is not known, else from anywhere.

    None if none was found: the space is, as good as, exhausted.
    """
    rng = random.Random(seed)
    if not space.parameters:
        return None
    near = space.draw(rng) if values is None else dict(values)
    for attempt in range(2 * MAX_DRAWS):
        # A walk away from the known placement, one parameter a step; then draws from everywhere.
        near = space.mutate(near, rng) if attempt < MAX_DRAWS else space.draw(rng)
        if candidate_key(*space.decode(near)) not in known:
            return near
    return None
