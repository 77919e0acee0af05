"""Which placements are best by prediction: drawn, ranked by time, then held to the budgets."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace, Value
from autoplace.predict.latency import LatencyModel, Prediction

MAX_CHANGES = 6
Fits = Callable[[Placement, RunSettings], bool]


@dataclass(frozen=True)
class Predicted:
    """A placement with its predicted time."""

    placement: Placement
    settings: RunSettings
    prediction: Prediction


def best_placements(
    space: SearchSpace,
    model: LatencyModel,
    fits: Fits,
    *,
    count: int,
    seed: int,
    starts: Sequence[Mapping[str, Value]] = (),
    num_draws: int = 512,
    max_checks: int = 150,
) -> tuple[Predicted, ...]:
    """At most `count` different placements that fit, least seconds a request first.

    Half of the draws are from the whole space, half are walks of a few changes from `starts`. Time
    is cheap and memory exact but dear, so the draws are ranked by time first and checked for
    memory in that order. After `max_checks` checks there may be fewer than `count`, or none.
    """
    rng = random.Random(seed)
    drawn = {space.decode(_draw(space, starts, rng)) for _ in range(num_draws)}
    ranked = sorted(
        (Predicted(*candidate, model.predict(*candidate)) for candidate in sorted(drawn, key=repr)),
        key=lambda predicted: predicted.prediction.request_s(space.workload),
    )
    found: list[Predicted] = []
    for predicted in ranked[:max_checks]:
        if len(found) == count:
            break
        known = any(predicted.placement == other.placement for other in found)
        if not known and fits(predicted.placement, predicted.settings):
            found.append(predicted)
    return tuple(found)


def _draw(
    space: SearchSpace, starts: Sequence[Mapping[str, Value]], rng: random.Random
) -> Mapping[str, Value]:
    if not starts or not space.parameters or rng.random() < 0.5:
        return space.draw(rng)
    values = rng.choice(starts)
    for _ in range(rng.randint(1, MAX_CHANGES)):
        values = space.mutate(values, rng)
    return values
