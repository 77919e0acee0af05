"""Which strategy finds the front with the fewest trials: a simulated study, no hardware.

    nice python studies/benchmarks/strategies.py [--seeds 10] [--bias 0.2] [--noise 0.03] [--out D]

DeepSeek-V2 on two A6000 in `builtin`, 5,760 vectors of five parameters. The truth is the time model
times log-normal factors of standard deviation `bias`, drawn anew for each seed: half of their
variance by kind of cost, which refitting can express, half by each parameter's value, which the
model knows nothing of. A trial returns it with log-normal `noise`. Memory is predicted with an
error of 1 %. Strategies are judged by the true hypervolume of what they ran, relative to that of
the whole space. A trial is a run; what is pruned costs nothing. `corrected model` refits the
model's factors, and what is left by parameter value, after every trial.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import optuna
import yaml
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from autoplace.architectures import geometry_from_preset, spec_from_geometry
from autoplace.config.groups import CONF, profile
from autoplace.hardware.profile import machine_from_profile
from autoplace.placement.expand import Expander
from autoplace.placement.memory import plan_memory
from autoplace.placement.space import SearchSpace, Value
from autoplace.predict.calibrate import fit
from autoplace.predict.latency import LatencyModel
from autoplace.units import GIB
from autoplace.workload import Workload

WORKLOAD = Workload("chat", 128, 32, 160)
NUM_TRIALS = 60
NUM_ENQUEUED = 12
MEMORY_ERROR = 0.01
ENOUGH = 0.95
RIDGE = 1.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """All vectors of a space with what the model says of them. N vectors, K kinds of cost."""

    axes: Mapping[str, tuple[Value, ...]]
    decode: Floats
    """[N, K] seconds of a token."""
    prefill: Floats
    """[N, K]"""
    over_bytes: Floats
    """[N, devices]: predicted peak minus budget."""
    peak_bytes: Floats
    """[N, devices]"""

    @property
    def size(self) -> int:
        return len(self.decode)

    def index(self, values: Mapping[str, Value]) -> int:
        found = 0
        for name, axis in self.axes.items():
            found = found * len(axis) + axis.index(values[name])
        return found

    @cached_property
    def one_hot(self) -> Floats:
        """[N, values of all axes]"""
        columns = []
        at = np.arange(self.size)
        for axis in list(self.axes.values())[::-1]:
            at, here = np.divmod(at, len(axis))
            columns.append(np.eye(len(axis))[here])
        return np.concatenate(columns, axis=1)

    def values(self, index: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for name, axis in list(self.axes.items())[::-1]:
            index, at = divmod(index, len(axis))
            values[name] = axis[at]
        return values


def make_grid() -> Grid:
    preset = yaml.safe_load((CONF / "model" / "deepseek-v2.yaml").read_text())
    spec = spec_from_geometry("deepseek-v2", geometry_from_preset(preset), quant="q4_k_m")
    machine = machine_from_profile(profile("2xa6000"))
    machine = replace(
        machine, devices=(replace(machine.host, memory_bytes=112 * GIB), *machine.gpus)
    )
    space = SearchSpace(spec, machine, WORKLOAD, "builtin")
    ops = ("KExpertsMarlin 4", "KExpertsMarlin 8", "KExpertsTorch")
    axes: dict[str, tuple[Value, ...]] = {
        "cuda:0.end_layer": tuple(range(2, 60, 4)),
        "cuda:0.num_experts": tuple(range(0, 32, 4)),
        "cuda:1.num_experts": tuple(range(0, 32, 4)),
        "cuda:0.experts": ops,
        "prefill_chunk": (64, 128),
    }
    model = LatencyModel(spec, machine, WORKLOAD)
    expander = Expander(spec)
    rows: list[tuple[Mapping[str, float], Mapping[str, float], list[int], list[int]]] = []
    for combination in product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        values["cuda:1.experts"] = values["cuda:0.experts"]
        placement, settings = space.decode(values | {"experts_order": "most_host_bytes"})
        plan = plan_memory(spec, expander.expand(placement), workload=WORKLOAD, settings=settings)
        over = plan.overrun_bytes(machine)
        names = [device.name for device in machine.devices]
        peaks = [over[name] + machine.by_name[name].budget_bytes for name in names]
        rows.append((*model.by_key(placement, settings), [over[n] for n in names], peaks))
    keys = sorted({key for row in rows for key in row[0]})
    return Grid(
        axes,
        np.array([[row[0].get(key, 0.0) for key in keys] for row in rows]),
        np.array([[row[1].get(key, 0.0) for key in keys] for row in rows]),
        np.array([row[2] for row in rows], float),
        np.array([row[3] for row in rows], float),
    )


class Truth:
    """One seed's machine: the model with other factors, noise, and memory that is a bit off."""

    def __init__(self, grid: Grid, *, bias: float, noise: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._noise, self._rng = noise, rng
        self.decode_s = self._biased(grid, grid.decode, bias)
        self.prefill_s = self._biased(grid, grid.prefill, bias)
        error = rng.normal(0, MEMORY_ERROR, grid.peak_bytes.shape)
        self.fits: NDArray[np.bool_] = np.all(
            grid.over_bytes + error * grid.peak_bytes <= 0, axis=1
        )
        self.worst = (1 / self.decode_s[self.fits].max(), self.prefill_s[self.fits].max())
        self.all = self.hypervolume(np.nonzero(self.fits)[0])

    def _biased(self, grid: Grid, costs: Floats, bias: float) -> Floats:
        by_key = np.exp(self._rng.normal(0, bias / 2**0.5, costs.shape[1]))
        deviation = bias / 2**0.5 / len(grid.axes) ** 0.5
        by_value = self._rng.normal(0, deviation, grid.one_hot.shape[1])
        seconds: Floats = (costs @ by_key) * np.exp(grid.one_hot @ by_value)
        return seconds

    def run(self, index: int) -> tuple[float, float] | None:
        """Seconds of a token and of the prefill, or None: out of memory."""
        if not self.fits[index]:
            return None
        noise = np.exp(self._rng.normal(0, self._noise, 2))
        return float(self.decode_s[index] * noise[0]), float(self.prefill_s[index] * noise[1])

    def hypervolume(self, indices: Sequence[int] | NDArray[np.integer]) -> float:
        """True one of what was run: rates over that of the slowest, latencies below the longest."""
        points = sorted((1 / self.decode_s[i], self.prefill_s[i]) for i in indices)
        volume, before = 0.0, self.worst[1]
        for rate, latency in reversed(points):
            if latency < before:
                volume += (rate - self.worst[0]) * (before - latency)
                before = latency
        return float(volume)


class History(list[tuple[int, tuple[float, float] | None]]):
    """Vectors that were run, with what came of them."""


def peeled(decode_s: Floats, prefill_s: Floats, among: NDArray[np.integer]) -> list[int]:
    """Vectors in the order of their fronts: the front, then the front of the rest, and so on."""
    left = list(among)
    order: list[int] = []
    while left and len(order) < 4 * NUM_TRIALS:
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
    for _ in range(40 * NUM_TRIALS):
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


def strategies(names: Sequence[str]) -> dict[str, Callable[[Grid, History, int], Iterator[int]]]:
    samplers = optuna.samplers
    optuna_ones: dict[str, tuple[Callable[[int], Any], bool, int]] = {
        "random": (lambda s: samplers.RandomSampler(seed=s), False, 0),
        "tpe": (lambda s: samplers.TPESampler(seed=s), False, 0),
        "tpe, pruned": (lambda s: samplers.TPESampler(seed=s), True, 0),
        "tpe, pruned, 12 first": (lambda s: samplers.TPESampler(seed=s), True, NUM_ENQUEUED),
        "nsga2, pruned, 12 first": (
            lambda s: samplers.NSGAIISampler(seed=s, population_size=16),
            True,
            NUM_ENQUEUED,
        ),
        "gp, pruned, 12 first": (lambda s: samplers.GPSampler(seed=s), True, NUM_ENQUEUED),
    }

    def optuna_strategy(name: str) -> Callable[[Grid, History, int], Iterator[int]]:
        make, prune, enqueue = optuna_ones[name]
        return lambda grid, history, seed: by_optuna(
            grid, history, make(seed), prune=prune, enqueue=enqueue
        )

    found = {name: optuna_strategy(name) for name in optuna_ones}
    found["model's ranking"] = lambda grid, history, seed: by_model(grid, history, corrected=False)
    found["corrected model"] = lambda grid, history, seed: by_model(grid, history, corrected=True)
    return {name: one for name, one in found.items() if not names or name in names}


def run(
    grid: Grid, truth: Truth, strategy: Callable[[Grid, History, int], Iterator[int]], seed: int
) -> tuple[list[float], int]:
    """Share of the whole hypervolume after each trial, and how many ran out of memory."""
    history = History()
    ran: list[int] = []
    shares: list[float] = []
    proposals = strategy(grid, history, seed)
    for index in proposals:
        seen = truth.run(index)
        history.append((index, seen))
        if seen is not None:
            ran.append(index)
        shares.append(truth.hypervolume(ran) / truth.all)
        if len(shares) == NUM_TRIALS:
            break
    shares += [shares[-1] if shares else 0.0] * (NUM_TRIALS - len(shares))
    return shares, sum(seen is None for _, seen in history)


def main() -> None:
    arguments = parse_arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    arguments.out.mkdir(parents=True, exist_ok=True)
    grid = make_grid()
    fitting = (grid.over_bytes <= 0).all(1).mean()
    print(f"{grid.size} vectors, {1 - fitting:.0%} of them do not fit; bias {arguments.bias:g}")
    curves: dict[str, list[list[float]]] = {}
    memory: dict[str, list[int]] = {}
    names = [name.strip() for name in arguments.only.split(";") if name.strip()]
    for name, strategy in strategies(names).items():
        for seed in range(arguments.seeds):
            truth = Truth(grid, bias=arguments.bias, noise=arguments.noise, seed=seed)
            shares, num_over = run(grid, truth, strategy, seed)
            curves.setdefault(name, []).append(shares)
            memory.setdefault(name, []).append(num_over)
        print(line(name, curves[name], memory[name]), flush=True)
    (arguments.out / "strategies.json").write_text(json.dumps(curves))
    (arguments.out / "strategies.svg").write_text(svg(curves))


def line(name: str, curves: Sequence[Sequence[float]], memory: Sequence[int]) -> str:
    """Median over seeds and, in brackets, the lower and upper quartile."""
    at_30 = np.quantile([curve[29] for curve in curves], (0.5, 0.25, 0.75))
    needed = [
        next((i + 1 for i, share in enumerate(curve) if share >= ENOUGH), NUM_TRIALS + 1)
        for curve in curves
    ]
    middle = median(needed)
    text = f"> {NUM_TRIALS}" if middle > NUM_TRIALS else f"{middle:g}"
    return (
        f"| {name:24s} | {at_30[0]:.2f} [{at_30[1]:.2f} {at_30[2]:.2f}] | {text:>5s} "
        f"| {np.mean(memory):4.1f} |"
    )


COLOURS = ("#999", "#d95f02", "#e7a500", "#1b9e77", "#7570b3", "#66a61e", "#1f78b4", "#e7298a")


def svg(curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Median share of the hypervolume over trials."""
    width, height, left, top = 640, 360, 50, 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 260}" height="{height + 70}" '
        'font-family="sans-serif" font-size="12">'
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + height * (1 - share)
        parts.append(f'<path d="M{left} {y}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{share:g}</text>')
    for trial in (1, 10, 20, 30, 40, 50, 60):
        x = left + width * trial / NUM_TRIALS
        parts.append(f'<text x="{x}" y="{top + height + 18}" text-anchor="middle">{trial}</text>')
    for i, (name, runs) in enumerate(curves.items()):
        middle = np.median(np.array(runs), axis=0)
        points = " ".join(
            f"{left + width * (t + 1) / NUM_TRIALS:.1f},{top + height * (1 - share):.1f}"
            for t, share in enumerate(middle)
        )
        colour = COLOURS[i % len(COLOURS)]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        y = top + 16 + 18 * i
        parts.append(f'<text x="{left + width + 14}" y="{y}" fill="{colour}">{name}</text>')
    caption = "trials; median share of the exhaustive hypervolume"
    parts.append(f'<text x="{left}" y="{top + height + 40}">{caption}</text></svg>')
    return "\n".join(parts)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--bias", type=float, default=0.2)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--only", default="", help="strategies by name, separated by ;")
    parser.add_argument("--out", type=Path, default=Path("/tmp/autoplace-strategies"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
