"""Machines that tests of placements are about."""

from autoplace.hardware.machine import Device, Machine
from autoplace.units import GIB

HOST = Device("cpu", "host", 64 * GIB, 2 * GIB, 60e9, 1e12)


def gpu(index: int, gib: float, capability: tuple[int, int] | None = (8, 6)) -> Device:
    return Device(f"cuda:{index}", "RTX", int(gib * GIB), GIB // 2, 900e9, 70e12, capability)


def machine(*gpus_gib: float, emulated: bool = False, num_cores: int = 8) -> Machine:
    """A host of 64 GiB and 8 cores, with GPUs of these sizes."""
    gpus = tuple(gpu(i, gib) for i, gib in enumerate(gpus_gib))
    return Machine("test", (HOST, *gpus), emulated=emulated, num_cores=num_cores)
