"""Which strategy finds the front with the fewest trials: a simulated study, no hardware.

    python studies/benchmarks/strategies.py [--seeds 10] [--bias 0.2] [--noise 0.03] [--out D]
    python studies/benchmarks/strategies.py --only "random;model's ranking" [--out D]: these anew

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
from pathlib import Path
from typing import Any

import optuna
from simulated.by_model import History, by_model
from simulated.by_sampler import by_optuna
from simulated.drawing import HEADER, line, svg
from simulated.grid import Grid, make_grid
from simulated.truth import Truth

NUM_TRIALS = 60
NUM_ENQUEUED = 12
Runs = tuple[list[list[float]], list[int]]
"""By seed: shares of the hypervolume after each trial, and how many runs were out of memory."""


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
    misfits = 1 - (grid.over_bytes <= 0).all(1).mean()
    opening = (
        f"{grid.size} vectors, {misfits:.0%} of them do not fit; bias {arguments.bias:g}, noise "
        f"{arguments.noise:g}, {arguments.seeds} seeds"
    )
    stem = arguments.out / f"strategies-bias-{arguments.bias:g}"
    kept = read_kept(stem, opening)
    names = [name.strip() for name in arguments.only.split(";") if name.strip()]
    print(opening, HEADER, sep="\n\n")
    for name, strategy in strategies(names).items():
        kept[name] = runs_of(grid, strategy, arguments)
        print(line(name, *kept[name]), flush=True)
    ordered = {name: kept[name] for name in strategies([]) if name in kept}
    write(stem, opening, ordered)


def runs_of(
    grid: Grid,
    strategy: Callable[[Grid, History, int], Iterator[int]],
    arguments: argparse.Namespace,
) -> Runs:
    """Shares after each trial, and runs out of memory, of every seed."""
    shares, memory = [], []
    for seed in range(arguments.seeds):
        truth = Truth(grid, bias=arguments.bias, noise=arguments.noise, seed=seed)
        of_seed, num_over = run(grid, truth, strategy, seed)
        shares.append([round(share, 4) for share in of_seed])
        memory.append(num_over)
    return shares, memory


def read_kept(stem: Path, opening: str) -> dict[str, Runs]:
    """What an earlier call with the same settings left: strategies can be run one by one."""
    path = stem.with_name(f"{stem.name}.json")
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("opening") != opening:
        return {}
    return {name: (shares, memory) for name, (shares, memory) in kept["runs"].items()}


def write(stem: Path, opening: str, runs: Mapping[str, Runs]) -> None:
    """The curves, their plot and their table."""
    curves = {name: shares for name, (shares, _) in runs.items()}
    rows = [line(name, shares, memory) for name, (shares, memory) in runs.items()]
    texts = {
        "json": json.dumps({"opening": opening, "runs": runs}),
        "svg": svg(curves) + "\n",
        "md": "\n".join([f"{opening}\n", HEADER, *rows, ""]),
    }
    for suffix, text in texts.items():
        stem.with_name(f"{stem.name}.{suffix}").write_text(text)


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
