"""`probe`: measures this machine, and keeps what it found for `plan` and `tune`."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoplace import __version__
from autoplace.bench.environment import worker_environment
from autoplace.commands.model_source import describe_model
from autoplace.commands.output import answer_console, print_json, progress_console, table
from autoplace.config import ProbeConfig
from autoplace.errors import AutoplaceError
from autoplace.hardware.fingerprint import fingerprint
from autoplace.predict.calibration import calibration_to_json, save_calibration
from autoplace.predict.calibration_store import calibration_path
from autoplace.units import format_seconds

if TYPE_CHECKING:
    from autoplace.bench.probe import Probe
    from autoplace.bench.probe_rates import Figure

MOST_OTHER_SHARE = 0.1
LEAST_REMOTE_SHARE = 0.8


def run(config: ProbeConfig) -> int:
    """0: the calibration is kept for this machine and engine, and written to `out` if given."""
    if config.engine.name != "builtin":
        raise AutoplaceError(
            f"probe measures the operators of engine=builtin, not of {config.engine.name}"
        )
    # What libraries read when they load has to be what trials run under: idle threads sleep.
    os.environ.update(worker_environment(config.machine))
    from autoplace.bench.probe import probe

    spec = describe_model(config.model)
    done = probe(
        spec,
        config.machine,
        config.engine.calibrated_as,
        time_limit_s=config.time_limit_s,
        interleave=config.engine.interleave,
        on_figure=lambda figure: progress_console().print(_line(figure)),
    )
    kept = calibration_path(config.machine, config.engine.calibrated_as)
    save_calibration(done.calibration, kept)
    document = _document(config, done)
    if config.out is not None:
        _write(config.out, document)
    if config.output == "json":
        print_json("probe", document)
    else:
        _print(config, done, kept)
    return 0


def _document(config: ProbeConfig, done: "Probe") -> dict[str, Any]:
    machine = config.machine
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "version": __version__,
        "machine": fingerprint(machine),
        "hardware": {
            "name": machine.name,
            "emulated": machine.emulated,
            "num_cores": machine.num_cores,
            "numa_nodes": machine.numa_nodes,
            "devices": [
                {"name": device.name, "model": device.model, "memory_bytes": device.memory_bytes}
                for device in machine.devices
            ],
        },
        "model": config.model.name,
        "seconds": done.seconds,
        "other_share": done.other_share,
        "remote_share": done.remote_share,
        "figures": [
            {
                "what": figure.what,
                "num_threads": figure.num_threads,
                "unit": figure.unit,
                "median": figure.rate.median,
                "low": figure.rate.low,
                "high": figure.rate.high,
                "n": figure.rate.n,
            }
            for figure in done.figures
        ],
        "calibration": calibration_to_json(done.calibration),
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as problem:
        raise AutoplaceError(f"cannot write {path}: {problem.strerror}") from problem


def _print(config: ProbeConfig, done: "Probe", kept: Path) -> None:
    console = answer_console()
    rows = table(
        f"{config.machine.name} at the shapes of {config.model.name}, in "
        f"{format_seconds(done.seconds)}",
        *("what", "threads", "median", "first quartile", "third quartile", "repeats"),
    )
    for figure in done.figures:
        spread = figure.rate
        values = (_value(v, figure.unit) for v in (spread.median, spread.low, spread.high))
        rows.add_row(figure.what, str(figure.num_threads), *values, str(spread.n))
    console.print(rows)
    for line in best_threads(done):
        console.print(line)
    if done.remote_share is not None and done.remote_share < LEAST_REMOTE_SHARE:
        share = f"{done.remote_share:.0%}".replace("%", " %")
        console.print(
            f"memory of another NUMA node is read at {share} of its own rate: spread the weights "
            "over the nodes (numactl --interleave=all)"
        )
    if done.other_share > MOST_OTHER_SHARE:
        share = f"{done.other_share:.0%}".replace("%", " %")
        console.print(
            f"others took {share} of the CPU time meanwhile: measure again when it is quiet"
        )
    console.print(f"kept in {kept}; plan and tune on this machine start from it", soft_wrap=True)


def best_threads(done: "Probe") -> list[str]:
    """Where fewer threads are faster than all."""
    rates = done.calibration.rates
    lines = []
    for name, curve in rates.decode_bytes_per_s.items():
        best = max(curve, key=lambda threads: curve[threads])
        if best != max(curve):
            lines.append(f"{name}: faster with {best} of {max(curve)} threads in decode")
    return lines


def _line(figure: "Figure") -> str:
    value = _value(figure.rate.median, figure.unit)
    return f"{figure.what}, {figure.num_threads} threads: {value}"


def _value(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1e6:.3g} µs"
    return f"{value / 1e9:.4g} G{unit}"
