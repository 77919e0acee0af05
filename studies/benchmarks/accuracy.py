"""How far predictions are off on this machine: before and after calibration, and as a ranking.

    python studies/benchmarks/accuracy.py --hardware emulated-256-128mib --out DIR
    python studies/benchmarks/accuracy.py --hardware auto --out DIR
    python studies/benchmarks/accuracy.py --hardware emulated-2x2gib --out DIR model.path=FILE

A second call with the same DIR goes on where the first one ended; --again only analyses.

Measures at least 20 placements drawn over the space, the obvious and the solved among them, in turn
and in several rounds, of which the median counts: a machine that others use drifts. What two rounds
say of each other (the noise, and their own Spearman) is what no model can beat. Then compares four
models: the profile's starting values, the probe, the probe corrected by three runs
(judged on the others), and the probe corrected by all (each judged without its own run). At the
end some placements are loaded once more to see what their processes really take. The accuracy.json
in DIR has all of it, with the date and the machine.
"""

import argparse
import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from autoplace.bench.environment import worker_environment
from autoplace.bench.metrics import Outcome, Status
from autoplace.bench.trial_process import TrialProcess
from autoplace.commands.tune import problem_of
from autoplace.config import TuneConfig, load_config
from autoplace.hardware.fingerprint import description
from autoplace.placement.baselines import obvious_placements
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.predict.calibrate import Observation, refit
from autoplace.predict.calibration import (
    Calibration,
    load_calibration,
    save_calibration,
)
from autoplace.predict.latency import LatencyModel
from autoplace.predict.solve import Solver
from autoplace.tuner.candidate import Candidate, Preparer, Problem
from autoplace.tuner.predicted_runner import PredictedRunner
from autoplace.tuner.process_runner import ProcessRunner
from autoplace.tuner.records import placement_from_json, placement_to_json
from autoplace.tuner.runner import Runner
from autoplace.units import MIB

NUM_CALIBRATING = 3
NUM_DRAWN = 600
STEADY_SPREAD = 0.3
"""A run whose middle half is wider is made again, twice at most."""
NUM_TRIES = 3
DISTURBED = (Status.UNSTABLE.value, Status.CONTENDED.value)
MOST_WAITING = 0.1
"""Of the time, for a CPU; and of the CPU time, by others: beyond both, a run is made again."""
FIGURES = ("decode_tok_per_s", "prefill_latency_s")
RUNS, PROBE, PEAKS = "runs.json", "probe.json", "peaks.json"
NUM_PROBES, QUIET = 3, 0.05
"""A probe that others took more of the CPU time from is made again; the quietest one counts."""
NUM_PEAKS = 5


@dataclass(frozen=True)
class Accuracy:
    """Of one model over measured placements."""

    model: str
    num_placements: int
    decode_mape: float
    prefill_mape: float
    decode_spearman: float
    prefill_spearman: float
    request_spearman: float
    best_of_5: bool
    """The best measured request is among the five that are predicted best."""


def main() -> None:
    arguments = parse_arguments()
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    config = load_config("tune", [f"hardware={arguments.hardware}", *arguments.words])
    assert isinstance(config, TuneConfig)
    problem = problem_of(config, config.kv_type)
    quick = replace(
        problem.measure,
        quality=False,
        min_repeats=arguments.repeats,
        max_repeats=arguments.repeats,
        max_wait_share=1.0 if arguments.busy else MOST_WAITING,
        max_other_share=1.0 if arguments.busy else MOST_WAITING,
        unstable_spread=1e9 if arguments.busy else STEADY_SPREAD,
    )
    problem = replace(problem, measure=quick)
    if not arguments.again:
        if not (folder / PROBE).exists():
            save_calibration(probed(problem, arguments.simulate), folder / PROBE)
        runner: Runner = ProcessRunner()
        if arguments.simulate is not None:
            runner = PredictedRunner(problem.spec, bias=arguments.simulate, noise=0.03)
        measure_all(problem, runner, folder / RUNS, arguments)
        runner.close()
        if arguments.simulate is None and not (folder / PEAKS).exists():
            (folder / PEAKS).write_text(json.dumps(peaks(problem, read_runs(folder / RUNS))))
    report(problem, folder)


def report(problem: Problem, folder: Path) -> None:
    """Print the table, and write it as accuracy.json with what it stands on."""
    every = read_runs(folder / RUNS)
    runs = [run for run in every if "status" not in run]
    accuracies = analyse(problem, runs, load_calibration(folder / PROBE))
    used = read_runs(folder / PEAKS)
    print_table(problem, accuracies)
    equal = sum(map(equal_bytes, runs))
    print(noise_line(runs))
    print(f"declared peaks equal to the plan's on every device: {equal} of {len(runs)} runs")
    print(f"planned to fit and out of memory: {sum(map(is_false_fit, every))}")
    for one in used:
        over = one["used_bytes"] - one["declared_bytes"]
        print(
            f"peak of {one['pool']}: {one['used_bytes'] / MIB:.0f} MiB really used, "
            f"{over / MIB:+.0f} MiB ({over / one['declared_bytes']:+.1%}) against the plan"
        )
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": description(problem.machine),
        "model": problem.spec.name,
        "workload": problem.workload.name,
        "accuracies": [asdict(one) for one in accuracies],
        "noise": noise_line(runs),
        "num_equal_bytes": equal,
        "num_false_fits": sum(map(is_false_fit, every)),
        "peaks": used,
    }
    (folder / "accuracy.json").write_text(json.dumps(document, indent=2) + "\n")


def probed(problem: Problem, simulated: float | None) -> Calibration:
    """By the probe; nothing is known of a machine that is only simulated."""
    if simulated is not None:
        return Calibration()
    os.environ.update(worker_environment(problem.machine))  # before torch is loaded
    from autoplace.bench.probe import probe

    found, quietest = Calibration(), math.inf
    for _ in range(NUM_PROBES):
        done = probe(problem.spec, problem.machine, problem.space.engine)
        print(f"probed in {done.seconds:.0f} s; others took {done.other_share:.0%} of the CPU time")
        if done.other_share < quietest:
            found, quietest = done.calibration, done.other_share
        if quietest < QUIET:
            break
    return found


def peaks(problem: Problem, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What some placements' processes really take, beside the same bytes of the plan."""
    good = [run for run in runs if "status" not in run]
    preparer, found = Preparer(problem), []
    for i in sorted({round(i) for i in np.linspace(0, len(good) - 1, NUM_PEAKS)}):
        placement = placement_from_json(good[i]["placement"])
        candidate = preparer.prepare(placement, RunSettings(**good[i]["settings"]))
        footprint = TrialProcess().footprint(candidate.request(problem))
        found += [{"run": i, "pool": name, **asdict(p)} for name, p in footprint.pools.items()]
    return found


def measure_all(
    problem: Problem, runner: Runner, path: Path, arguments: argparse.Namespace
) -> None:
    """Run different placements that fit, round by round, as plain data; what the file has stays."""
    preparer = Preparer(problem)
    chosen = placements(problem, preparer, arguments.placements, arguments.seed)
    runs = read_runs(path)
    for number in range(arguments.rounds):
        for index, one in enumerate(chosen):
            if index < len(runs) and runs[index]["num_rounds"] > number:
                continue
            run = run_steadily(preparer.prepare(*one), problem, runner)
            runs[index : index + 1] = [merged(runs[index] if index < len(runs) else {}, run)]
            path.write_text(json.dumps(runs))
            print(f"round {number + 1}, {index + 1}: {summary(run)}", flush=True)


def merged(before: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """All rounds of one placement; a round that gave no number is counted only."""
    both: dict[str, Any] = {**before, **run}
    both["num_rounds"] = before.get("num_rounds", 0) + 1
    if "decode_tok_per_s" not in both:
        return both
    both.pop("status", None)
    for figure in FIGURES:
        rounds = [*before.get(f"{figure}_by_round", []), *([run[figure]] if figure in run else [])]
        both |= {f"{figure}_by_round": rounds, figure: float(np.median(rounds))}
    return both


def noise_line(runs: Sequence[Mapping[str, Any]]) -> str:
    """How far two rounds of the same placements are apart, and how alike their rankings are."""
    twice = [run for run in runs if len(run["decode_tok_per_s_by_round"]) > 1]
    if len(twice) < 2:
        return "one round only: the noise of a run is not known"
    said = []
    for figure in FIGURES:
        first, second = (np.array([run[f"{figure}_by_round"][i] for run in twice]) for i in (0, 1))
        apart = float(np.abs(first / second - 1).mean())
        said.append(f"{apart:.1%} apart, Spearman {spearman(first, second):.3f}")
    return f"two rounds of {len(twice)} placements: decode {said[0]}; prefill {said[1]}"


def run_steadily(candidate: Candidate, problem: Problem, runner: Runner) -> dict[str, Any]:
    """One run, made again while others disturb it."""
    for _ in range(NUM_TRIES):
        outcome = runner.run(candidate.request(problem))
        if outcome.status.value not in DISTURBED:
            break
    return as_data(candidate, outcome)


def read_runs(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())) if path.exists() else []


def as_data(candidate: Candidate, outcome: Outcome) -> dict[str, Any]:
    run: dict[str, Any] = {
        "placement": placement_to_json(candidate.placement),
        "settings": candidate.settings.record(),
        "planned_peaks": {n: m.peak for n, m in candidate.plan.by_device.items()},
    }
    metrics = outcome.metrics
    if outcome.status is not Status.OK or metrics is None:
        return {**run, "status": outcome.status.value, "reason": outcome.reason}
    return {
        **run,
        "decode_tok_per_s": metrics.decode_tok_per_s.median,
        "prefill_latency_s": metrics.prefill_latency_s.median,
        "decode_spread": metrics.decode_tok_per_s.relative,
        "declared_peaks": {n: b.peak for n, b in metrics.bytes_by_device.items()},
    }


def summary(run: Mapping[str, Any]) -> str:
    if "status" in run:
        return f"no number: {run['status']}: {run['reason']}"
    threads = run["settings"]["num_threads"]
    return (
        f"{run['decode_tok_per_s']:.1f} tok/s, {run['prefill_latency_s']:.3f} s, {threads} threads"
    )


def is_false_fit(run: Mapping[str, Any]) -> bool:
    return bool(run.get("status") == Status.OUT_OF_MEMORY.value)


def equal_bytes(run: Mapping[str, Any]) -> bool:
    """Whether the ledger's peak is on every device what was planned."""
    planned = run["planned_peaks"]
    return all(peak == planned.get(name, 0) for name, peak in run["declared_peaks"].items())


def placements(
    problem: Problem, preparer: Preparer, count: int, seed: int
) -> Sequence[tuple[Placement, RunSettings]]:
    """The obvious, the solved, and draws from everywhere, slow ones too: spread evenly over the
    ranks that the starting values give them. In random order, so that drift is not a ranking."""
    space = problem.space
    model = LatencyModel(problem.spec, problem.machine, problem.workload)
    overrun = preparer.overrun_bytes
    solved = Solver(space, model, overrun).solve().front[:4]
    chosen = {(one.placement, one.settings): None for one in obvious_placements(space, overrun)}
    chosen |= {(one.placement, one.settings): None for one in solved}
    rng = random.Random(seed)
    starts = [v for v in (space.encode(*one) for one in chosen) if v is not None]
    drawn: dict[tuple[Placement, RunSettings], float] = {}
    for _ in range(NUM_DRAWN):
        values = space.draw(rng) if rng.random() < 0.5 else rng.choice(starts)
        for _ in range(rng.randint(1, 8)):
            values = space.mutate(values, rng)
        one = space.decode(values)
        if one not in chosen and preparer.fits(*one):
            drawn[one] = model.predict(*one).request_s(problem.workload)
    ranked = sorted(drawn, key=lambda one: drawn[one])
    wanted = max(0, count - len(chosen))
    chosen |= dict.fromkeys(ranked[i * len(ranked) // max(1, wanted)] for i in range(wanted))
    order = list(chosen)
    rng.shuffle(order)
    return order


def analyse(
    problem: Problem, runs: Sequence[Mapping[str, Any]], probed: Calibration
) -> list[Accuracy]:
    observations = [
        Observation(
            placement_from_json(run["placement"]),
            RunSettings(**run["settings"]),
            1 / run["decode_tok_per_s"],
            run["prefill_latency_s"],
        )
        for run in runs
    ]
    start = model_of(problem, None)
    seen = model_of(problem, probed)
    spread = np.linspace(0, len(observations) - 1, NUM_CALIBRATING).round().astype(int)
    few = [observations[i] for i in spread]
    others = [one for i, one in enumerate(observations) if i not in set(spread.tolist())]
    three = model_of(problem, refit(seen, few).calibration)
    return [
        accuracy("starting values", observations, predictions(start, observations), problem),
        accuracy("probe", observations, predictions(seen, observations), problem),
        accuracy("probe, 3 runs", others, predictions(three, others), problem),
        accuracy(
            "probe, all but one", observations, left_out(problem, seen, observations), problem
        ),
    ]


def model_of(problem: Problem, calibration: Calibration | None) -> LatencyModel:
    return LatencyModel(
        problem.spec,
        problem.machine,
        problem.workload,
        dtype_bytes=problem.dtype_bytes,
        engine=problem.space.engine,
        calibration=calibration,
    )


def predictions(
    model: LatencyModel, observations: Sequence[Observation]
) -> list[tuple[float, float]]:
    """Seconds a token and of the prefill."""
    found = [model.predict(one.placement, one.settings) for one in observations]
    return [(1 / one.decode_tok_per_s, one.prefill_latency_s) for one in found]


def left_out(
    problem: Problem, model: LatencyModel, observations: Sequence[Observation]
) -> list[tuple[float, float]]:
    found = []
    for i, one in enumerate(observations):
        rest = [other for j, other in enumerate(observations) if j != i]
        found += predictions(model_of(problem, refit(model, rest).calibration), [one])
    return found


def accuracy(
    name: str,
    observations: Sequence[Observation],
    predicted: Sequence[tuple[float, float]],
    problem: Problem,
) -> Accuracy:
    seen = np.array([(one.decode_s, one.prefill_s) for one in observations])
    said = np.array(predicted)
    tokens = problem.workload.output_tokens - 1
    seen_request, said_request = seen @ (tokens, 1.0), said @ (tokens, 1.0)
    return Accuracy(
        name,
        len(observations),
        decode_mape=float(np.abs(seen[:, 0] / said[:, 0] - 1).mean()),
        prefill_mape=float(np.abs(said[:, 1] / seen[:, 1] - 1).mean()),
        decode_spearman=spearman(seen[:, 0], said[:, 0]),
        prefill_spearman=spearman(seen[:, 1], said[:, 1]),
        request_spearman=spearman(seen_request, said_request),
        best_of_5=int(seen_request.argmin()) in said_request.argsort()[:5],
    )


def spearman(a: "np.ndarray[Any, Any]", b: "np.ndarray[Any, Any]") -> float:
    """Correlation of ranks; ties, which hardly occur among times, rank in order."""
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


def print_table(problem: Problem, accuracies: Sequence[Accuracy]) -> None:
    print(f"{problem.spec.name} on {problem.machine.name}, {problem.workload.name}")
    print("MAPE of decode and prefill, Spearman of decode, prefill and request, best among five")
    for one in accuracies:
        print(
            f"{one.model:20s} {one.num_placements:2d} {one.decode_mape:11.1%} "
            f"{one.prefill_mape:13.1%}  {one.decode_spearman:.3f} / {one.prefill_spearman:.3f} / "
            f"{one.request_spearman:.3f}            {'yes' if one.best_of_5 else 'no'}"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hardware", default="emulated-256-128mib")
    parser.add_argument("--placements", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("/tmp/autoplace-accuracy"))
    parser.add_argument("--again", action="store_true", help="analyse what is in --out")
    parser.add_argument(
        "--simulate", type=float, help="no machine: the model with this bias, to check the script"
    )
    parser.add_argument("--busy", action="store_true", help="accept what others disturb")
    parser.add_argument("words", nargs="*", help="further key=value, e.g. model=mini")
    return parser.parse_args()


if __name__ == "__main__":
    main()
