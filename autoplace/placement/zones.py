"""The verdict on memory in three zones, by the margin on each device and its stated error."""

from enum import Enum

from autoplace.hardware.machine import Machine
from autoplace.placement.memory import MemoryPlan
from autoplace.units import MIB


class Zone(Enum):
    """How sure the answer is."""

    FITS = "fits"
    CLOSE = "close"
    """Within the stated error: try it."""
    DOES_NOT_FIT = "does not fit"


def error_bytes(plan: MemoryPlan, machine: Machine, device: str) -> int:
    """How far what is really used may be from the plan's peak.

    An emulated device's ledger allows no byte more. Elsewhere 3 % or 300 MiB, whichever is less
    (prediction section 3). KTransformers' context (0.4 to 0.7 GB; 0.5 GiB is planned) and its
    activations ("about 0.3 MB a token") are estimates: 256 MiB and a quarter of the rest.
    """
    memory = plan.by_device.get(device)
    if memory is None or machine.emulated:
        return 0
    if plan.includes_context and device != "cpu":
        return 256 * MIB + memory.workspace // 4
    return min(memory.peak * 3 // 100, 300 * MIB)


def zone_of(plan: MemoryPlan, machine: Machine, device: str) -> Zone:
    """Of one device. Bytes that are known exactly are refused at the first one too many."""
    memory = plan.by_device.get(device)
    margin = plan.budget_bytes(machine, device) - (memory.peak if memory else 0)
    error = error_bytes(plan, machine, device)
    below = error if plan.includes_context and device != "cpu" else 0
    if margin < -below or (margin < 0 and device not in machine.by_name):
        return Zone.DOES_NOT_FIT
    return Zone.FITS if margin >= error else Zone.CLOSE


def worst_zone(plan: MemoryPlan, machine: Machine) -> Zone:
    """Of the whole machine: that of its worst device."""
    order = list(Zone)
    names = dict.fromkeys([*machine.by_name, *plan.by_device])
    return max((zone_of(plan, machine, name) for name in names), key=order.index)
