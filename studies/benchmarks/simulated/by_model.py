"""Proposals by the time model alone, as it is or refitted after every run."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from autoplace.predict.calibrate import fit
from simulated.grid import Floats, Grid

LONGEST_ORDER = 240
RIDGE = 1.0


class History(list[tuple[int, tuple[float, float] | None]]):
    """Vectors that were run, with what came of them."""


def peeled(decode_s: Floats, prefill_s: Floats, among: NDArray[np.integer]) -> list[int]:
    """Vectors in the order of their fronts: the front, then the front of the rest, and so on."""
    left = list(among)
    order: list[int] = []
    while left and len(order) < LONGEST_ORDER:
        ranked = sorted(left, key=lambda i: (decode_s[i], prefill_s[i]))
        front, best = [], np.inf
        for i in ranked:
            if prefill_s[i] < best * (1 - 1e-12):
                front.append(i)
                best = prefill_s[i]
        order += _spread(front)
        taken = set(front)
        left = [i for i in left if i not in taken]
    return [int(i) for i in order]


def _spread(front: list[int]) -> list[int]:
    """Both ends first, then the middle, and so on."""
    ends = list(np.linspace(0, len(front) - 1, min(len(front), 3)).round().astype(int))
    first = [front[i] for i in dict.fromkeys(ends)]
    return first + [i for i in front if i not in set(first)]


def by_model(grid: Grid, history: History, *, corrected: bool) -> Iterator[int]:
    """The model's ranking; if `corrected`, of the model refitted to all runs so far."""
    fitting = np.nonzero((grid.over_bytes <= 0).all(1))[0]
    ones = np.ones(grid.decode.shape[1])
    order = peeled(grid.decode @ ones, grid.prefill @ ones, fitting)
    done: set[int] = set()
    while True:
        runs = [(i, seen) for i, seen in history if seen is not None]
        if corrected and len(runs) >= 3:
            order = peeled(
                _refitted(grid, grid.decode, runs, 0),
                _refitted(grid, grid.prefill, runs, 1),
                fitting,
            )
        index = next((i for i in order if i not in done), None)
        if index is None:
            return
        done.add(index)
        yield index


def _refitted(
    grid: Grid, costs: Floats, runs: Sequence[tuple[int, tuple[float, float]]], phase: int
) -> Floats:
    """Seconds of all vectors: factors by kind of cost, then a ridge on what is left, by value."""
    named = [{str(k): s for k, s in enumerate(costs[i])} for i, _ in runs]
    factors = fit(named, [seen[phase] for _, seen in runs]).factors
    seconds = costs @ np.array([factors.get(str(k), 1.0) for k in range(costs.shape[1])])
    rows = [i for i, _ in runs]
    left = np.log(np.array([seen[phase] for _, seen in runs]) / seconds[rows])
    x = grid.one_hot[rows]
    effects = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ left)
    corrected: Floats = seconds * np.exp(grid.one_hot @ effects)
    return corrected
