"""Where this machine's calibrations are kept, and which one a command uses."""

from pathlib import Path

from autoplace.hardware.fingerprint import fingerprint
from autoplace.hardware.machine import Machine
from autoplace.native import cache_dir
from autoplace.predict.calibration import Calibration, load_calibration


def calibration_path(machine: Machine, engine: str) -> Path:
    """In the cache folder, by what the machine is and the engine."""
    return cache_dir() / "calibrations" / f"{fingerprint(machine)}-{engine}.json"


def find_calibration(machine: Machine, engine: str, given: Path | None) -> Calibration:
    """The one that is given, else the kept one of this machine and engine, else none.

    Raises `AutoplaceError` for one that is of another machine or engine.
    """
    path = given or calibration_path(machine, engine)
    if given is None and not path.exists():
        return Calibration()
    calibration = load_calibration(path)
    calibration.check(machine=fingerprint(machine), engine=engine)
    return calibration
