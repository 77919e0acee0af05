"""A hardware profile of conf/hardware, composed or named, real or emulated, as a Machine.

What looks at this machine (NVML, psutil, numpy) is imported where it is looked at: a named profile
is to be had at once.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoplace.errors import AutoplaceError
from autoplace.hardware.links import pcie_links
from autoplace.hardware.machine import Device, Link, Machine
from autoplace.hardware.parts import GpuPart, gpu_part, host_part
from autoplace.units import GIB, format_bytes

EMULATED_MODEL = "emulated"
RPC_MODEL = "llama.cpp-rpc-server"
EMULATED_LINK_LATENCY_S = 1e-6
_ENDPOINT = re.compile(r"127\.0\.0\.1:(\d{1,5})")


def machine_from_profile(profile: Mapping[str, Any]) -> Machine:
    """The machine that a mapping with the keys of conf/hardware/_base.yaml describes.

    Memory is given in GiB there. Raises `AutoplaceError` for unknown parts, for numbers that make
    no machine, and for emulated budgets that this machine's memory cannot hold.
    """
    if profile["emulated"]:
        return _emulated(profile)
    if profile["detect"]:
        return _detected(profile)
    return _composed(profile)


def _composed(profile: Mapping[str, Any]) -> Machine:
    parts = [gpu_part(name) for name in profile["gpus"]]
    host = host_part(profile["host"])
    if profile["host_memory_gib"] is None:
        raise AutoplaceError(
            "hardware.host_memory_gib is not given; e.g. hardware.host_memory_gib=64"
        )
    memory = _gpu_memory(profile, len(parts))
    reserve_bytes = _bytes(profile, "reserve_gib")
    gpus = tuple(
        _gpu_device(f"cuda:{i}", part, memory_bytes=memory[i], reserve_bytes=reserve_bytes)
        for i, part in enumerate(parts)
    )
    num_cores = profile["num_cores"] or host.num_cores
    cpu = Device(
        name="cpu",
        model=host.model,
        memory_bytes=_bytes(profile, "host_memory_gib"),
        reserve_bytes=_bytes(profile, "host_reserve_gib"),
        bandwidth_bytes_per_s=host.bandwidth_bytes_per_s,
        flops=host.flops * num_cores / host.num_cores,
    )
    return Machine(
        name=profile["name"] or _name_of_parts(profile),
        devices=_checked((cpu, *gpus)),
        links=pcie_links(host.pcie_gen, [part.pcie_gen for part in parts]),
        num_cores=num_cores,
        numa_nodes=profile["numa_nodes"] or host.numa_nodes,
    )


def _detected(profile: Mapping[str, Any]) -> Machine:
    from autoplace.hardware.detect import detect_machine

    machine = detect_machine(
        reserve_bytes=_bytes(profile, "reserve_gib"),
        host_reserve_bytes=_bytes(profile, "host_reserve_gib"),
    )
    memory = _gpu_memory(profile, len(machine.gpus))
    gpus = tuple(
        device if limit is None else _shrunk(device, limit, _bytes(profile, "reserve_gib"))
        for device, limit in zip(machine.gpus, memory, strict=True)
    )
    host = machine.host
    if profile["host_memory_gib"] is not None:
        host = _shrunk(
            host, _bytes(profile, "host_memory_gib"), _bytes(profile, "host_reserve_gib")
        )
    return replace(
        machine,
        name=profile["name"] or machine.name,
        devices=_checked((host, *gpus)),
        num_cores=profile["num_cores"] or machine.num_cores,
        numa_nodes=profile["numa_nodes"] or machine.numa_nodes,
    )


def _emulated(profile: Mapping[str, Any]) -> Machine:
    """GPUs as budgets in this host's memory: the host keeps what they do not take."""
    from autoplace.hardware.detect import host_device
    from autoplace.hardware.host import detect_host

    facts = detect_host()
    count = len(profile["gpus"]) or _list_length(profile["gpu_memory_gib"])
    budgets = [n for n in _gpu_memory(profile, count) if n is not None]
    if not budgets or len(budgets) != count:
        raise AutoplaceError("an emulated machine needs hardware.gpu_memory_gib, e.g. [2.0,2.0]")
    reserve_bytes = _bytes(profile, "host_reserve_gib")
    host = host_device(facts, reserve_bytes=reserve_bytes)
    if profile["host_memory_gib"] is not None:
        host = _shrunk(
            host, _bytes(profile, "host_memory_gib"), _bytes(profile, "host_reserve_gib")
        )
    if sum(budgets) + reserve_bytes > facts.memory_bytes:
        raise AutoplaceError(
            f"the emulated GPUs of {profile['name']} take {format_bytes(sum(budgets))} of host "
            f"memory, but this machine has {format_bytes(facts.memory_bytes)}, of which "
            f"{format_bytes(reserve_bytes)} are kept free"
        )
    host = replace(
        host,
        memory_bytes=min(host.memory_bytes, facts.memory_bytes - sum(budgets)),
    )
    endpoints = _endpoints(profile, count)
    gpus = tuple(
        Device(
            name=f"rpc:{i}" if endpoints else f"cuda:{i}",
            model=RPC_MODEL if endpoints else EMULATED_MODEL,
            memory_bytes=n_bytes,
            reserve_bytes=_bytes(profile, "reserve_gib"),
            bandwidth_bytes_per_s=host.bandwidth_bytes_per_s,
            flops=host.flops,
            endpoint=endpoints[i] if endpoints else None,
        )
        for i, n_bytes in enumerate(budgets)
    )
    devices = _checked((host, *gpus))
    return Machine(
        name=profile["name"] or "emulated",
        devices=devices,
        links=_memory_links(devices),
        emulated=True,
        num_cores=profile["num_cores"] or facts.num_cores,
        numa_nodes=profile["numa_nodes"] or facts.numa_nodes,
    )


def _endpoints(profile: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Where the devices' RPC servers listen; empty where the profile has none.

    On the loopback interface only: the protocol has no authentication.
    """
    endpoints = tuple(str(endpoint) for endpoint in profile["rpc"])
    for endpoint in endpoints:
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None or not 0 < int(found[1]) < 65536:
            raise AutoplaceError(f"hardware.rpc lists 127.0.0.1:PORT, got {endpoint!r}")
    if len(set(endpoints)) != len(endpoints):
        raise AutoplaceError(f"hardware.rpc names a port twice: {', '.join(endpoints)}")
    if endpoints and len(endpoints) != count:
        raise AutoplaceError(
            f"hardware.rpc has {len(endpoints)} servers, but hardware.gpu_memory_gib {count} sizes"
        )
    return endpoints


def _gpu_device(
    name: str, part: GpuPart, *, memory_bytes: int | None, reserve_bytes: int
) -> Device:
    return Device(
        name=name,
        model=part.model,
        memory_bytes=part.memory_bytes if memory_bytes is None else memory_bytes,
        reserve_bytes=reserve_bytes,
        bandwidth_bytes_per_s=part.bandwidth_bytes_per_s,
        flops=part.flops,
        compute_capability=part.compute_capability,
    )


def _shrunk(device: Device, memory_bytes: int, reserve_bytes: int) -> Device:
    """The device held to a smaller memory; a budget never grows over what is there."""
    if memory_bytes > device.memory_bytes:
        raise AutoplaceError(
            f"{device.name} has {format_bytes(device.memory_bytes)}, "
            f"{format_bytes(memory_bytes)} were asked for"
        )
    budget = min(device.budget_bytes, memory_bytes - reserve_bytes)
    return replace(device, memory_bytes=memory_bytes, reserve_bytes=memory_bytes - budget)


def _gpu_memory(profile: Mapping[str, Any], count: int) -> list[int | None]:
    """Bytes per GPU from `gpu_memory_gib`: a number for all, a list with one each, or null."""
    given = profile["gpu_memory_gib"]
    if given is None:
        return [None] * count
    numbers = list(given) if isinstance(given, Sequence) else [given] * count
    if isinstance(given, str) or not all(_is_size(n) for n in numbers):
        raise AutoplaceError(f"hardware.gpu_memory_gib is a number or a list, got {given!r}")
    if len(numbers) != count:
        raise AutoplaceError(f"hardware.gpu_memory_gib has {len(numbers)} numbers for {count} GPUs")
    return [round(n * GIB) for n in numbers]


def _is_size(number: Any) -> bool:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and math.isfinite(number) and number > 0


def _checked(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    for device in devices:
        if device.budget_bytes < 0:
            raise AutoplaceError(
                f"{device.name} has {format_bytes(device.memory_bytes)}, of which "
                f"{format_bytes(device.reserve_bytes)} are kept free: nothing is left"
            )
    return devices


def _memory_links(devices: tuple[Device, ...]) -> tuple[Link, ...]:
    """Between emulated devices a move is a copy in host memory: read once, written once."""
    return tuple(
        Link(a.name, b.name, a.bandwidth_bytes_per_s / 2, EMULATED_LINK_LATENCY_S)
        for a in devices
        for b in devices
        if a is not b
    )


def _bytes(profile: Mapping[str, Any], key: str) -> int:
    gib = float(profile[key])
    if not math.isfinite(gib) or gib < 0:
        raise AutoplaceError(f"hardware.{key} is a number of GiB, got {gib}")
    return round(gib * GIB)


def _list_length(value: Any) -> int:
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else 0


def _name_of_parts(profile: Mapping[str, Any]) -> str:
    return "+".join([*profile["gpus"], profile["host"]])
