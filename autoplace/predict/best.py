"""The best predicted placements for a study to begin with: the solutions, and walks from them."""

import random
from collections.abc import Mapping, Sequence

from autoplace.placement.space import SearchSpace, Value
from autoplace.predict.latency import LatencyModel
from autoplace.predict.predicted import Overrun, Predicted
from autoplace.predict.solve import Solver

NUM_DRAWS = 256
MAX_CHANGES = 6
MAX_CHECKS = 150


def best_placements(
    space: SearchSpace,
    model: LatencyModel,
    overrun: Overrun,
    *,
    count: int,
    seed: int,
    starts: Sequence[Mapping[str, Value]] = (),
    dtype_bytes: int = 2,
) -> tuple[Predicted, ...]:
    """At most `count` different placements that fit, least seconds a request first.

    The solutions, and walks of a few changes from them and from `starts` where samplers can follow:
    a solution that the space's parameters cannot say is not walked from.
    """
    rng = random.Random(seed)
    solved = Solver(space, model, overrun, dtype_bytes=dtype_bytes).solve()
    known = [space.encode(one.placement, one.settings) for one in solved.pool]
    origins = [*starts, *(values for values in known if values is not None)]
    drawn = {space.decode(_draw(space, origins, rng)) for _ in range(NUM_DRAWS)}
    walked = [Predicted(*one, model.predict(*one)) for one in sorted(drawn, key=repr)]
    solutions = {(one.placement, one.settings) for one in solved.pool}
    ranked = sorted(
        [*solved.pool, *walked], key=lambda one: one.prediction.request_s(space.workload)
    )
    found: list[Predicted] = []
    for one in ranked[: len(solved.pool) + MAX_CHECKS]:
        if len(found) == count:
            break
        key = (one.placement, one.settings)
        if all(one.placement != other.placement for other in found) and (
            key in solutions or max(overrun(*key).values()) <= 0
        ):
            found.append(one)
    return tuple(found)


def _draw(
    space: SearchSpace, origins: Sequence[Mapping[str, Value]], rng: random.Random
) -> Mapping[str, Value]:
    if not origins or not space.parameters or rng.random() < 0.25:
        return space.draw(rng)
    values = rng.choice(origins)
    for _ in range(rng.randint(1, MAX_CHANGES)):
        values = space.mutate(values, rng)
    return values
