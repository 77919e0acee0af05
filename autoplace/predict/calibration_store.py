"""Where this machine's calibrations are kept, and which one a command uses."""

import logging
from pathlib import Path

from autoplace.errors import AutoplaceError
from autoplace.hardware.fingerprint import description, fingerprint
from autoplace.hardware.machine import Machine
from autoplace.native import cache_dir
from autoplace.predict.calibration import Calibration, load_calibration

logger = logging.getLogger(__name__)


def calibration_path(machine: Machine, engine: str) -> Path:
    """In the cache folder, by what the machine is and the engine."""
    return cache_dir() / "calibrations" / f"{fingerprint(machine)}-{engine}.json"


def find_calibration(machine: Machine, engine: str, given: Path | None) -> Calibration:
    """The one that is given, else the kept one of this machine and engine, else none.

    Raises `AutoplaceError` for a given one that cannot be read, or is of another machine or engine.
    A kept one that cannot be read is left aside with a warning.
    """
    if given is not None:
        calibration = load_calibration(given)
        try:
            calibration.check(
                machine=fingerprint(machine), engine=engine, described=description(machine)
            )
        except AutoplaceError as problem:
            raise AutoplaceError(f"{given}: {problem}") from problem
        return calibration
    path = calibration_path(machine, engine)
    if not path.exists():
        return Calibration()
    try:
        return load_calibration(path)
    except AutoplaceError as problem:
        logger.warning("the kept calibration is not used: %s", problem)
        return Calibration()
