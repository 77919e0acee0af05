"""Fits, close, or does not fit: a verdict with the error that the memory arithmetic may have."""

from collections.abc import Mapping
from enum import Enum

from autoplace.hardware.machine import Machine
from autoplace.units import MIB

REAL_OVER_PREDICTED = 0.03
LEAST_ERROR_BYTES = 300 * MIB
"""Really used over predicted: at most 3 % or 300 MiB, whichever is more (prediction section 3)."""


class Zone(Enum):
    FITS = "fits"
    CLOSE = "close"
    """Within the error: to be run, a cheap probe first."""
    DOES_NOT_FIT = "does not fit"


def tolerance_bytes(machine: Machine, device: str, engine: str) -> tuple[int, int]:
    """Bytes over the budget from which a device is close, and from which it does not fit.

    The ledger of `builtin` enforces the budget on exactly the declared bytes: over is over. A real
    GPU may still run out below it. Other engines are bounds on both sides. Host memory counts what
    is declared.
    """
    if machine.emulated or device == machine.host.name or device not in machine.by_name:
        return 0, 0
    budget = machine.by_name[device].budget_bytes
    error = max(LEAST_ERROR_BYTES, round(REAL_OVER_PREDICTED * budget))
    return -error, 0 if engine == "builtin" else error


def zone(overrun_bytes: Mapping[str, int], machine: Machine, *, engine: str) -> Zone:
    """The worst verdict of any device; `overrun_bytes`: peak minus budget."""
    verdict = Zone.FITS
    for device, over in overrun_bytes.items():
        close_from, too_much_from = tolerance_bytes(machine, device, engine)
        if over > too_much_from:
            return Zone.DOES_NOT_FIT
        if over > close_from:
            verdict = Zone.CLOSE
    return verdict
