"""Whether a placement fits: bytes per device against the budgets, for `plan` and `check`."""

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from autoplace.commands.output import table
from autoplace.hardware.machine import Machine
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.zones import Zone, zone_of
from autoplace.units import format_bytes


@dataclass(frozen=True)
class DeviceFit:
    """One device's bytes, by what they are for, and what it may hold."""

    device: str
    model: str
    weights: int
    kv_cache: int
    workspace: int
    load_peak: int
    peak: int
    """The most that is taken at one time, loading included."""
    budget: int
    memory: int
    zone: Zone = Zone.FITS

    @property
    def margin(self) -> int:
        """Bytes left; negative where it does not fit."""
        return self.budget - self.peak


@dataclass(frozen=True)
class Fit:
    """The verdict, for the GPUs and for the host."""

    devices: tuple[DeviceFit, ...]

    @property
    def gpus_fit(self) -> bool:
        return all(device.margin >= 0 for device in self.devices if device.device != "cpu")

    @property
    def host_fits(self) -> bool:
        return all(device.margin >= 0 for device in self.devices if device.device == "cpu")

    @property
    def fits(self) -> bool:
        return self.gpus_fit and self.host_fits


def zone_of_fit(fit: Fit) -> Zone:
    """Of the worst device."""
    return max((device.zone for device in fit.devices), key=list(Zone).index)


def fit_of(plan: MemoryPlan, machine: Machine) -> Fit:
    """The plan's bytes against the machine; devices that the plan names and it lacks have none."""
    names = [device.name for device in machine.devices]
    names += [name for name in plan.by_device if name not in names]
    return Fit(tuple(_device_fit(name, plan, machine) for name in names))


def _device_fit(name: str, plan: MemoryPlan, machine: Machine) -> DeviceFit:
    device = machine.by_name.get(name)
    memory = plan.by_device.get(name)
    return DeviceFit(
        device=name,
        model=device.model if device else "not there",
        weights=memory.weights if memory else 0,
        kv_cache=memory.kv_cache if memory else 0,
        workspace=memory.workspace if memory else 0,
        load_peak=memory.load_peak if memory else 0,
        peak=memory.peak if memory else 0,
        budget=plan.budget_bytes(machine, name),
        memory=device.memory_bytes if device else 0,
        zone=zone_of(plan, machine, name),
    )


def fit_document(fit: Fit) -> dict[str, Any]:
    """For `output=json`."""
    return {
        "fits": fit.fits,
        "zone": zone_of_fit(fit).value,
        "gpus_fit": fit.gpus_fit,
        "host_fits": fit.host_fits,
        "devices": {
            device.device: {
                "model": device.model,
                "weights_bytes": device.weights,
                "kv_cache_bytes": device.kv_cache,
                "workspace_bytes": device.workspace,
                "load_peak_bytes": device.load_peak,
                "peak_bytes": device.peak,
                "budget_bytes": device.budget,
                "memory_bytes": device.memory,
                "margin_bytes": device.margin,
                "zone": device.zone.value,
            }
            for device in fit.devices
        },
    }


def fit_table(title: str, fit: Fit) -> Table:
    """One row a device."""
    rows = table(
        title, "device", "weights", "KV cache", "workspace", "load peak", "peak", "budget", "left"
    )
    for device in fit.devices:
        rows.add_row(
            f"{device.device} {device.model}",
            format_bytes(device.weights),
            format_bytes(device.kv_cache),
            format_bytes(device.workspace),
            format_bytes(device.load_peak),
            format_bytes(device.peak),
            format_bytes(device.budget),
            _left(device.margin),
        )
    return rows


def _left(margin: int) -> str:
    return format_bytes(margin) if margin >= 0 else f"{format_bytes(-margin)} over"


def verdict(fit: Fit) -> str:
    """`fits`, or which devices are too small and by how much."""
    if fit.fits:
        tightest = min(fit.devices, key=lambda device: device.margin)
        return f"fits; {format_bytes(tightest.margin)} left on {tightest.device}"
    over = ", ".join(
        f"{device.device} by {format_bytes(-device.margin)}"
        for device in fit.devices
        if device.margin < 0
    )
    return f"does not fit: over the budget of {over}"
