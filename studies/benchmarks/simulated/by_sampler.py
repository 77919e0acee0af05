"""Proposals by Optuna's samplers, which are told what does not fit.

As in the tuner, what was pruned before is a duplicate like what was run: a sampler that learns from
complete trials only (GP, NSGA-II) would propose it for ever.
"""

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
    seen_before: set[int] = set()
    for _ in range(MOST_ASKED):
        trial = study.ask(distributions)
        index = grid.index(trial.params)
        over = grid.over_bytes[index]
        known = index in seen_before
        seen_before.add(index)
        if known or (prune and (over > 0).any()):
            _constrain(trial, over)
            study.tell(trial, state=TrialState.PRUNED)
            if known:
                neighbour = _neighbour(grid, index, seen_before, len(study.trials))
                study.enqueue_trial(grid.values(neighbour))
            continue
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


def _neighbour(grid: Grid, index: int, known: set[int], seed: int) -> int:
    """A walk away from a known vector, one value a step, until one that is not known."""
    rng = np.random.default_rng(seed)
    values = grid.values(index)
    while index in known:
        name = str(rng.choice(list(grid.axes)))
        values[name] = grid.axes[name][int(rng.integers(len(grid.axes[name])))]
        index = grid.index(values)
    return index


def _constrain(trial: optuna.Trial, over: Floats) -> None:
    for device, value in enumerate(over):
        trial.set_constraint(str(device), float(value))
