"""Whether the kernel killed a process for memory: told by counters, not by messages."""

import re
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


class OutOfMemoryKills:
    """Watches the kernel's counters for one process, from now on.

    Sources: cgroup-v2.rst `memory.events`, cgroup-v1/memory.rst `memory.oom_control`, and
    `oom_kill` of /proc/vmstat, which counts the kills of the whole machine.
    """

    def __init__(self, pid: int) -> None:
        folder = memory_cgroup(pid)
        self._counters = [Path("/proc/vmstat")]
        if folder is not None:
            self._counters += [folder / "memory.events", folder / "memory.oom_control"]
        self._before = self._count()

    def happened(self) -> bool:
        return self._count() > self._before

    def _count(self) -> int:
        return sum(_oom_kill(path) for path in self._counters)


def memory_cgroup(pid: int) -> Path | None:
    """Folder of the cgroup that limits a process's memory; None where there is none to see."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        folder = _CGROUPS if controllers == "" else _CGROUPS / "memory"
        if controllers == "" or "memory" in controllers.split(","):
            folder = folder / path.lstrip("/")
            if any((folder / name).exists() for name in ("memory.events", "memory.oom_control")):
                return folder
    return None


def _oom_kill(counters: Path) -> int:
    try:
        found = re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
