"""Whether the real GPUs got their memory back after a worker's end, as the driver sees it."""

import time
from collections.abc import Mapping

from autoplace.hardware.machine import Machine
from autoplace.hardware.nvml import visible_gpus
from autoplace.units import MIB, format_bytes

TOLERANCE_BYTES = 64 * MIB
WAIT_S = 10.0
POLL_S = 0.5


def free_bytes(machine: Machine) -> dict[str, int]:
    """By device name; empty where the GPUs are emulated, or none."""
    if machine.emulated or not machine.gpus:
        return {}
    free = {gpu.uuid: gpu.free_bytes for gpu in visible_gpus()}
    return {gpu.name: free[gpu.uuid] for gpu in machine.gpus if gpu.uuid in free}


def quarantine_reason(before: Mapping[str, int], machine: Machine) -> str:
    """Which GPUs miss memory some seconds after our worker ended; empty if none does.

    The driver takes a moment to clean up after a killed process.
    """
    deadline_s = time.monotonic() + WAIT_S
    while reason := missing(before, free_bytes(machine)):
        if time.monotonic() > deadline_s:
            return reason
        time.sleep(POLL_S)
    return ""


def missing(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Devices with less free memory than before, beyond a tolerance."""
    return "; ".join(
        f"{name} misses {format_bytes(n_bytes - after.get(name, 0))}"
        for name, n_bytes in before.items()
        if n_bytes - after.get(name, 0) > TOLERANCE_BYTES
    )
