"""Proposals by Optuna's samplers, which are told what does not fit."""

from collections.abc import Iterator

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from autoplace.placement.space import Value
from simulated.by_model import History, peeled
from simulated.grid import Floats, Grid

MOST_ASKED = 2400


def by_optuna(
    grid: Grid, history: History, sampler: optuna.samplers.BaseSampler, *, prune: bool, enqueue: int
) -> Iterator[int]:
    """A sampler of Optuna's, told of out of memory, and of what is pruned, by constraints."""
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(axis) if isinstance(axis[0], str) else _integers(axis)
        for name, axis in grid.axes.items()
    }
    if enqueue:
        fitting = np.nonzero((grid.over_bytes <= 0).all(1))[0]
        ones = np.ones(grid.decode.shape[1])
        for i in peeled(grid.decode @ ones, grid.prefill @ ones, fitting)[:enqueue]:
            study.enqueue_trial(grid.values(i))
    tried: set[int] = set()
    for _ in range(MOST_ASKED):
        trial = study.ask(distributions)
        index = grid.index(trial.params)
        over = grid.over_bytes[index]
        known = index in tried
        if known or (prune and (over > 0).any()):
            _constrain(trial, over)
            study.tell(trial, state=TrialState.PRUNED)
            if known:
                study.enqueue_trial(grid.values(_stranger(grid, tried, len(study.trials))))
            continue
        tried.add(index)
        yield index
        seen = history[-1][1]
        if seen is None:
            _constrain(trial, np.maximum(over, 1e6))
            study.tell(trial, state=TrialState.PRUNED)
        else:
            _constrain(trial, np.minimum(over, 0))
            study.tell(trial, [1 / seen[0], seen[1]])


def _integers(axis: tuple[Value, ...]) -> BaseDistribution:
    low, high = int(axis[0]), int(axis[-1])
    return optuna.distributions.IntDistribution(low, high, step=int(axis[1]) - low)


def _stranger(grid: Grid, tried: set[int], seed: int) -> int:
    rng = np.random.default_rng(seed)
    return next(i for i in iter(lambda: int(rng.integers(grid.size)), None) if i not in tried)


def _constrain(trial: optuna.Trial, over: Floats) -> None:
    for device, value in enumerate(over):
        trial.set_constraint(str(device), float(value))
