"""What a machine's probe and trials say of the model's constants, as plain data.

A calibration belongs to one machine (by fingerprint) and one engine. It is parsed, never executed.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autoplace.errors import AutoplaceError
from autoplace.predict.rates import Curve, HostRates, Surface

FORMAT = 3
UNCALIBRATED_DECODE_ERROR = 0.30
UNCALIBRATED_PREFILL_ERROR = 0.40
"""Bands where nothing was measured: what is asked of a profile alone (prediction section 3)."""
PROBED_DECODE_ERROR = 0.20
PROBED_PREFILL_ERROR = 0.30


@dataclass(frozen=True)
class Calibration:
    """Corrections of the starting values. The empty one corrects nothing."""

    machine: str = ""
    """Fingerprint; empty for the starting values."""
    engine: str = ""
    source: str = "starting values"
    """`starting values`, `probe`, or `probe and 12 trials`."""
    rates: HostRates = field(default_factory=HostRates)
    decode: Mapping[str, float] = field(default_factory=dict)
    """Cost key → factor on its seconds in decode."""
    prefill: Mapping[str, float] = field(default_factory=dict)
    handover_s: float | None = None
    """Measured one way between a device and experts on the host, where all devices are emulated."""
    gpu_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """`cuda:0` → what its memory was measured to carry."""
    launch_s: Mapping[str, float] = field(default_factory=dict)
    """`cuda:0` → one small kernel of many, one after the other."""
    links: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """`cpu cuda:0` → seconds of one small transfer, and bytes a second."""
    described: str = ""
    """The machine in words, for whoever has another one."""
    num_trials: int = 0
    decode_error: float = UNCALIBRATED_DECODE_ERROR
    """Expected relative error: leave-one-out once there are trials."""
    prefill_error: float = UNCALIBRATED_PREFILL_ERROR

    def check(self, *, machine: str, engine: str, described: str = "") -> None:
        """Raise `AutoplaceError` if it is from another machine or engine, naming the difference.

        `described`: this machine in words.
        """
        differences = [
            f"{what} {mine}{_in_words(said)}, not {other}{_in_words(here)}"
            for what, mine, other, said, here in (
                ("machine", self.machine, machine, self.described, described),
                ("engine", self.engine, engine, "", ""),
            )
            if mine and mine != other
        ]
        if differences:
            raise AutoplaceError(
                f"this calibration is of {' and '.join(differences)}; `probe` makes one here, and "
                "without any a plan starts from the profile"
            )


def _in_words(text: str) -> str:
    return f" ({text})" if text else ""


def calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(calibration)}


def calibration_from_json(data: Mapping[str, Any]) -> Calibration:
    """Parsed field by field. Raise `AutoplaceError` for what is no calibration."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        raise AutoplaceError(
            f"expected a calibration of format {FORMAT}, as `probe` writes it, but got {found!r}"
        )
    try:
        rates = data["rates"]
        handover_s = data["handover_s"]
        return Calibration(
            machine=str(data["machine"]),
            engine=str(data["engine"]),
            source=str(data["source"]),
            rates=HostRates(
                _curve(rates["bandwidth_bytes_per_s"]),
                {str(k): _curve(c) for k, c in rates["decode_bytes_per_s"].items()},
                {str(k): _surface(c) for k, c in rates["prefill_flops"].items()},
                _surface(rates["layer_s"]),
                _curve(rates["token_s"]),
            ),
            decode={str(key): _positive(value) for key, value in data["decode"].items()},
            prefill={str(key): _positive(value) for key, value in data["prefill"].items()},
            gpu_bytes_per_s={str(k): _positive(v) for k, v in data["gpu_bytes_per_s"].items()},
            launch_s={str(k): _positive(v) for k, v in data["launch_s"].items()},
            links={str(k): (_positive(v[0]), _positive(v[1])) for k, v in data["links"].items()},
            handover_s=None if handover_s is None else _positive(handover_s),
            described=str(data.get("described", "")),
            num_trials=int(data["num_trials"]),
            decode_error=float(data["decode_error"]),
            prefill_error=float(data["prefill_error"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        raise AutoplaceError(f"this calibration cannot be read: {problem!r}") from problem


def load_calibration(path: Path) -> Calibration:
    """From a JSON file: a calibration, or a profile of `probe` with one in it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise AutoplaceError(f"cannot read {path}: {problem.strerror}") from problem
    except ValueError as problem:
        raise AutoplaceError(f"{path} is no JSON: {problem}") from problem
    if isinstance(data, Mapping) and "calibration" in data:
        data = data["calibration"]
    try:
        return calibration_from_json(data)
    except AutoplaceError as problem:
        raise AutoplaceError(f"{path}: {problem}") from problem


def save_calibration(calibration: Calibration, path: Path) -> None:
    """As JSON, in place at once."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(calibration_to_json(calibration), indent=2) + "\n")
        draft.replace(path)
    except OSError as problem:
        raise AutoplaceError(f"cannot write {path}: {problem.strerror}") from problem


def _curve(data: Mapping[str, Any]) -> Curve:
    return {int(threads): _positive(rate) for threads, rate in data.items()}


def _surface(data: Mapping[str, Mapping[str, Any]]) -> Surface:
    if not all(data.values()):
        raise ValueError("expected figures by rows but got none")
    return {
        int(threads): {_positive(rows): _positive(figure) for rows, figure in curve.items()}
        for threads, curve in data.items()
    }


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError(f"expected a positive number but got {value!r}")
    return number
