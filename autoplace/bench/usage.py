"""What this process and the rest of the machine did while something was measured."""

import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Usage:
    """Between two looks at the counters of this process, or of those that it started."""

    wall_s: float
    cpu_s: float
    """CPU time of this process, all threads."""
    wait_s: float
    """Time that its threads were ready to run and had no CPU."""
    other_s: float
    """CPU time that everything else took, the hypervisor's steal included."""
    major_faults: int
    """Pages of this process that had to be read from a disk."""
    num_cores: int

    def __add__(self, other: "Usage") -> "Usage":
        """Of two spans of time together."""
        return Usage(
            wall_s=self.wall_s + other.wall_s,
            cpu_s=self.cpu_s + other.cpu_s,
            wait_s=self.wait_s + other.wait_s,
            other_s=self.other_s + other.other_s,
            major_faults=self.major_faults + other.major_faults,
            num_cores=max(self.num_cores, other.num_cores),
        )

    @property
    def wait_share(self) -> float:
        """Of the time that our threads could have run."""
        ready_s = self.cpu_s + self.wait_s
        return self.wait_s / ready_s if ready_s else 0.0

    @property
    def other_share(self) -> float:
        """Of all the CPU time there was."""
        available_s = self.wall_s * self.num_cores
        return min(1.0, self.other_s / available_s) if available_s else 0.0


NOTHING = Usage(0.0, 0.0, 0.0, 0.0, 0, 1)
"""Of no time at all."""


@dataclass(frozen=True)
class Counters:
    """The counters at one moment. Threads that end in between take their wait time with them."""

    wall_s: float
    cpu_s: float
    wait_s: float
    busy_s: float
    major_faults: int

    @classmethod
    def now(cls) -> "Counters":
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            wall_s=time.perf_counter(),
            cpu_s=used.ru_utime + used.ru_stime,
            wait_s=_wait_s("self"),
            busy_s=_busy_s(),
            major_faults=used.ru_majflt,
        )

    @classmethod
    def of(cls, pids: Iterable[int]) -> "Counters":
        """Of other processes together; those that have ended count as nothing.

        Source: proc_pid_stat(5), fields 12 (majflt), 14 (utime) and 15 (stime), in ticks.
        """
        cpu_s, wait_s, major_faults = 0.0, 0.0, 0
        for pid in pids:
            with suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
                major_faults += int(fields[9])
                wait_s += _wait_s(pid)
        return cls(time.perf_counter(), cpu_s, wait_s, _busy_s(), major_faults)

    def until(self, later: "Counters") -> Usage:
        cpu_s = max(0.0, later.cpu_s - self.cpu_s)
        return Usage(
            wall_s=later.wall_s - self.wall_s,
            cpu_s=cpu_s,
            wait_s=max(0.0, later.wait_s - self.wait_s),
            other_s=max(0.0, later.busy_s - self.busy_s - cpu_s),
            major_faults=max(0, later.major_faults - self.major_faults),
            num_cores=os.cpu_count() or 1,
        )


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _busy_s() -> float:
    """CPU time of the whole machine so far, the hypervisor's steal included."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "steal", 0.0))


def _wait_s(pid: int | str) -> float:
    """Second field of each thread's schedstat, in nanoseconds; 0 where the kernel has none.

    Source: Documentation/scheduler/sched-stats.rst, "time spent waiting on a runqueue".
    """
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(thread.read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total_ns / 1e9
