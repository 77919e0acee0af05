"""What a study tries first: the user's rules, the obvious, an earlier study's and the predicted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import optuna

from autoplace.placement.baselines import obvious_placements
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.best import best_placements
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.pareto import best_of, pareto_front
from autoplace.tuner.records import EARLIER, OBVIOUS, PREDICTED_BEST, record_of

NUM_EARLIER = 8


@dataclass(frozen=True)
class UserRules:
    """The rule file that was given as `rules=`."""

    placement: Placement
    settings: RunSettings
    body: str


@dataclass(frozen=True)
class FirstPlacement:
    """A placement to try before the sampler has a say, and where it comes from."""

    origin: str
    placement: Placement
    settings: RunSettings
    rules: str | None = None
    """Body of the user's own file."""


def first_placements(
    problem: Problem,
    preparer: Preparer,
    *,
    user_rules: UserRules | None,
    earlier: Sequence[optuna.Study],
    num_predicted: int,
    seed: int,
) -> Iterator[FirstPlacement]:
    """In the order in which they are tried. The same placement may come up more than once."""
    if user_rules:
        yield FirstPlacement(
            f"{OBVIOUS}your rules", user_rules.placement, user_rules.settings, user_rules.body
        )
    obvious = list(_obvious(problem, preparer))
    yield from obvious
    for study in earlier[:1]:
        yield from _best_of_earlier(study, problem.space)
    starts = [problem.space.encode(one.placement, one.settings) for one in obvious]
    for predicted in best_placements(
        problem.space,
        problem.latency_model,
        preparer.overrun_bytes,
        count=num_predicted,
        seed=seed,
        starts=[values for values in starts if values is not None],
        dtype_bytes=problem.dtype_bytes,
    ):
        yield FirstPlacement(PREDICTED_BEST, predicted.placement, predicted.settings)


def _obvious(problem: Problem, preparer: Preparer) -> Iterator[FirstPlacement]:
    """What everybody could have used: an engine's own ways, where it has such."""
    if problem.llama_cpp is not None:
        for one in problem.llama_cpp.baselines():
            yield FirstPlacement(OBVIOUS + one.name, one.placement, one.settings, one.line)
        return
    for baseline in obvious_placements(problem.space, preparer.overrun_bytes):
        yield FirstPlacement(OBVIOUS + baseline.name, baseline.placement, baseline.settings)


def _best_of_earlier(study: optuna.Study, space: SearchSpace) -> Iterator[FirstPlacement]:
    """The front of a study over another space, then its best by the workload's time."""
    records = [
        record
        for record in map(record_of, study.get_trials(deepcopy=False))
        if record.measured and record.feasible
    ]
    front = pareto_front(records)
    rest = [record for record in best_of(records, space.workload) if record not in front]
    for record in [*front, *rest][:NUM_EARLIER]:
        if record.placement is not None and record.settings is not None:
            yield FirstPlacement(EARLIER, record.placement, record.settings)
