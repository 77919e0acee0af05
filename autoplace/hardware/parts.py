"""The catalogue of parts: GPUs and hosts by the names that profiles compose."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.units import MIB

PARTS = Path(__file__).parents[1] / "conf" / "hardware" / "parts"
FLOPS_PER_CORE = 96e9
"""Of a host: two 256-bit float32 FMA units at 3 GHz; those of AVX-512 are twice as wide."""
UNMEASURED_BANDWIDTH_SHARE = 0.6
"""Of the theoretical one, where nobody measured."""


@dataclass(frozen=True)
class GpuPart:
    """A card as it is sold."""

    model: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops: float
    compute_capability: tuple[int, int]
    pcie_gen: int
    nvml_names: tuple[str, ...]


@dataclass(frozen=True)
class HostPart:
    """A processor with its memory channels; how much memory is the profile's to say."""

    model: str
    bandwidth_bytes_per_s: float
    flops: float
    num_cores: int
    numa_nodes: int
    pcie_gen: int


@cache
def gpu_parts() -> Mapping[str, GpuPart]:
    return {name: _gpu_part(entry) for name, entry in _read("gpus").items()}


@cache
def host_parts() -> Mapping[str, HostPart]:
    return {name: _host_part(entry) for name, entry in _read("hosts").items()}


def gpu_part(name: str) -> GpuPart:
    """A part by name; `AutoplaceError` with the near miss if there is none."""
    try:
        return gpu_parts()[name]
    except KeyError:
        raise AutoplaceError(f"no GPU {name!r}{did_you_mean(name, gpu_parts())}") from None


def host_part(name: str) -> HostPart:
    """A part by name; `AutoplaceError` with the near miss if there is none."""
    try:
        return host_parts()[name]
    except KeyError:
        raise AutoplaceError(f"no host {name!r}{did_you_mean(name, host_parts())}") from None


def gpu_part_by_nvml_name(nvml_name: str) -> GpuPart | None:
    """The part that the driver calls so (`NVIDIA GeForce RTX 4090`), if the catalogue has it."""
    name = nvml_name.removeprefix("NVIDIA ")
    return next((part for part in gpu_parts().values() if name in part.nvml_names), None)


def _read(kind: str) -> dict[str, dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    parts: dict[str, dict[str, Any]] = yaml.load((PARTS / f"{kind}.yaml").read_text(), loader)
    return parts


def _gpu_part(entry: Mapping[str, Any]) -> GpuPart:
    major, minor = entry["compute_capability"]
    return GpuPart(
        model=entry["model"],
        memory_bytes=entry["memory_mib"] * MIB,
        bandwidth_bytes_per_s=(entry["bandwidth_gb_per_s"] or 0) * 1e9,
        flops=entry["dense_bf16_tflops"] * 1e12,
        compute_capability=(major, minor),
        pcie_gen=entry["pcie_gen"],
        nvml_names=tuple(entry["nvml"]),
    )


def _host_part(entry: Mapping[str, Any]) -> HostPart:
    measured = entry["bandwidth_gb_per_s"]
    if measured is None:
        measured = (entry["theoretical_gb_per_s"] or 0) * UNMEASURED_BANDWIDTH_SHARE
    return HostPart(
        model=entry["model"],
        bandwidth_bytes_per_s=measured * 1e9,
        flops=entry["num_cores"] * FLOPS_PER_CORE,
        num_cores=entry["num_cores"],
        numa_nodes=entry["numa_nodes"],
        pcie_gen=entry["pcie_gen"],
    )
