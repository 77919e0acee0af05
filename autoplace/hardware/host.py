"""The host this runs on: memory, cores and NUMA nodes, as a container is allowed them."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class HostFacts:
    """What the operating system says, limits of a container applied."""

    model: str
    memory_bytes: int
    available_bytes: int
    num_cores: int
    numa_nodes: int
    flags: frozenset[str] = frozenset()
    """Instruction sets by the names of /proc/cpuinfo."""


def detect_host(*, cgroup: Path = CGROUP, proc: Path = Path("/proc")) -> HostFacts:
    """Read the host's facts. The paths are parameters so that tests can lay out other machines."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    limit, used = _memory_cgroup(cgroup, proc)
    if limit is not None and limit < total:
        total = limit
        available = min(available, max(0, limit - used))
    return HostFacts(
        model=_cpu_model(proc),
        memory_bytes=total,
        available_bytes=available,
        num_cores=_num_cores(cgroup, proc),
        numa_nodes=max(1, len(list(NODES.glob("node[0-9]*")))),
        flags=frozenset(_cpu_info(proc, "flags").split()),
    )


def _own_cgroups(proc: Path, cgroup: Path, controller: str) -> list[Path]:
    """Folders of this process's cgroup and its parents, innermost first; v1 and v2."""
    folders = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            root = cgroup
        elif controller in controllers.split(","):
            root = cgroup / controller
        else:
            continue
        folder = root / path.lstrip("/")
        folders += [folder, *(p for p in folder.parents if p == root or root in p.parents)]
    return [*folders, cgroup, cgroup / controller]


def _memory_cgroup(cgroup: Path, proc: Path) -> tuple[int | None, int]:
    """The tightest memory limit over this process, and what is used of it (cache not counted)."""
    tightest: tuple[int | None, int] = (None, 0)
    for folder in _own_cgroups(proc, cgroup, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(folder / limit_name)
            if limit is not None and (tightest[0] is None or limit < tightest[0]):
                cached = _inactive_file_bytes(folder / "memory.stat")
                tightest = limit, max(0, (_number(folder / used_name) or 0) - cached)
    return tightest


def _inactive_file_bytes(stat: Path) -> int:
    fields = dict(line.split(" ", 1) for line in _text(stat).splitlines() if " " in line)
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))


def _num_cores(cgroup: Path, proc: Path) -> int:
    """Physical cores, no more than the affinity mask and the CPU quota allow; at least one."""
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    allowed = [physical, len(os.sched_getaffinity(0))]
    for folder in _own_cgroups(proc, cgroup, "cpu"):
        quota = _text(folder / "cpu.max").split()
        if len(quota) == 2 and quota[0] != "max":
            allowed.append(int(quota[0]) // int(quota[1]))
        quota_us, period_us = (
            _number(folder / "cpu.cfs_quota_us"),
            _number(folder / "cpu.cfs_period_us"),
        )
        if quota_us is not None and period_us and quota_us > 0:
            allowed.append(quota_us // period_us)
    return max(1, min(allowed))


def _cpu_model(proc: Path) -> str:
    """As it is sold; a virtual machine that says `AMD EPYC` to every generation tells them apart by
    their numbers: `AMD-EPYC-family-23-model-1`."""
    name = "-".join(_cpu_info(proc, "model name").split()) or "unknown-host"
    family, model = (_cpu_info(proc, key).strip() for key in ("cpu family", "model"))
    if not family or any(character.isdigit() for character in name):
        return name
    return f"{name}-family-{family}-model-{model}"


def _cpu_info(proc: Path, name: str) -> str:
    """What the first core's entry says; empty where it says nothing."""
    for line in _text(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value
    return ""


def _number(path: Path) -> int | None:
    """An integer file; None where it is missing or says `max`. v1 spells "no limit" as 2**63."""
    text = _text(path).strip()
    if not text.lstrip("-").isdigit():
        return None
    return int(text) if int(text) < 2**60 else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
