"""The machine this runs on, and whether it is the one that a profile describes."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from autoplace.errors import AutoplaceError
from autoplace.hardware.bandwidth import host_bandwidth
from autoplace.hardware.host import HostFacts, detect_host
from autoplace.hardware.links import pcie_links
from autoplace.hardware.machine import Device, Machine
from autoplace.hardware.nvml import GpuFacts, visible_gpus
from autoplace.hardware.parts import FLOPS_PER_CORE, gpu_part_by_nvml_name, host_part
from autoplace.units import GIB, format_bytes

logger = logging.getLogger(__name__)

WIDE = "avx512f"
BF16 = frozenset({"avx512_bf16", "amx_bf16"})
LEAST_HOST = "desktop"
"""Whose memory bandwidth a host is taken to have at least, however busy it was when measured."""
CONTEXT_BYTES = int(0.6 * GIB)
"""The runtime's context on every real GPU: 0.4 to 0.7 GB."""
HOST_RESERVE_BYTES = 2 * GIB
IN_USE_BYTES = GIB
"""A card with more than this taken is called in use."""


def detect_machine(
    *,
    reserve_bytes: int = CONTEXT_BYTES,
    host_reserve_bytes: int = HOST_RESERVE_BYTES,
) -> Machine:
    """Describe this machine: GPUs in PCI order with what is free of them as the budget.

    `reserve_bytes` is kept free on every GPU beyond what is in use already. Logs a warning for
    every card that is in use. Without an NVIDIA driver the machine is its host alone.
    """
    return describe(
        detect_host(),
        visible_gpus(),
        reserve_bytes=reserve_bytes,
        host_reserve_bytes=host_reserve_bytes,
    )


def describe(
    host: HostFacts, gpus: Sequence[GpuFacts], *, reserve_bytes: int, host_reserve_bytes: int
) -> Machine:
    """The machine that these facts make."""
    _warn_of_use(gpus)
    devices = tuple(
        _gpu_device(f"cuda:{i}", gpu, reserve_bytes=reserve_bytes) for i, gpu in enumerate(gpus)
    )
    return Machine(
        name="auto",
        devices=(host_device(host, reserve_bytes=host_reserve_bytes), *devices),
        links=pcie_links(5, [gpu.pcie_gen for gpu in gpus]),
        num_cores=host.num_cores,
        numa_nodes=host.numa_nodes,
    )


def host_device(host: HostFacts, *, reserve_bytes: int) -> Device:
    """The host; its bandwidth is measured, but at least a desktop's; its flops follow its cores and
    the width of their vectors.

    Too low a bandwidth is the worse mistake: measured rates beyond it are called impossible.
    """
    desktop = host_part(LEAST_HOST).bandwidth_bytes_per_s
    return Device(
        name="cpu",
        model=host.model,
        memory_bytes=host.memory_bytes,
        reserve_bytes=min(reserve_bytes, host.memory_bytes),
        bandwidth_bytes_per_s=max(desktop, host_bandwidth(host.model, host.num_cores)),
        flops=host.num_cores * FLOPS_PER_CORE * (2 if WIDE in host.flags else 1),
        has_bf16=not BF16.isdisjoint(host.flags),
    )


def require_present(machine: Machine) -> Machine:
    """The profile with its GPUs' UUIDs and with what is free of them; emulated ones as they are.

    Raise `AutoplaceError` if this machine does not have the profile's GPUs: nothing that was not
    measured on them is passed off as theirs.
    """
    if machine.emulated or not machine.gpus:
        return machine
    return bind(machine, visible_gpus())


def bind(machine: Machine, present: Sequence[GpuFacts]) -> Machine:
    """Give every GPU of the profile the first free card of its model, in PCI order."""
    left = list(present)
    bound = []
    for device in machine.gpus:
        card = next((gpu for gpu in left if gpu_model(gpu) == device.model), None)
        if card is None:
            raise AutoplaceError(_not_present(machine, present))
        left.remove(card)
        bound.append(
            replace(
                device,
                uuid=card.uuid,
                reserve_bytes=max(
                    device.reserve_bytes,
                    device.memory_bytes
                    - card.free_bytes
                    + min(device.reserve_bytes, CONTEXT_BYTES),
                ),
            )
            if device.uuid is None
            else device
        )
    return replace(machine, devices=(machine.host, *bound))


def gpu_model(gpu: GpuFacts) -> str:
    """The catalogue's name of a card, or the driver's with dashes."""
    part = gpu_part_by_nvml_name(gpu.nvml_name)
    return part.model if part else "-".join(gpu.nvml_name.removeprefix("NVIDIA ").split())


def _gpu_device(name: str, gpu: GpuFacts, *, reserve_bytes: int) -> Device:
    part = gpu_part_by_nvml_name(gpu.nvml_name)
    taken = gpu.memory_bytes - gpu.free_bytes
    bandwidth = part.bandwidth_bytes_per_s if part else gpu.bandwidth_bytes_per_s
    return Device(
        name=name,
        model=gpu_model(gpu),
        memory_bytes=gpu.memory_bytes,
        reserve_bytes=min(taken + reserve_bytes, gpu.memory_bytes),
        bandwidth_bytes_per_s=bandwidth or 300e9,
        flops=part.flops if part else 100 * (bandwidth or 300e9),
        compute_capability=gpu.compute_capability,
        uuid=gpu.uuid,
    )


def _warn_of_use(gpus: Sequence[GpuFacts]) -> None:
    for i, gpu in enumerate(gpus):
        taken = gpu.memory_bytes - gpu.free_bytes
        if gpu.process_ids or taken > IN_USE_BYTES:
            logger.warning(
                "cuda:%d (%s) is in use: %s of %s are taken and do not count as budget",
                i,
                gpu_model(gpu),
                format_bytes(taken),
                format_bytes(gpu.memory_bytes),
            )


def _not_present(machine: Machine, present: Sequence[GpuFacts]) -> str:
    wanted = ", ".join(device.model for device in machine.gpus)
    found = ", ".join(gpu_model(gpu) for gpu in present) or "no GPU"
    return (
        f"hardware={machine.name} has {wanted}, but this machine has {found}; "
        f"use `plan` for it, or measure=predicted for a study against the cost model"
    )
