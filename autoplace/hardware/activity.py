"""Whether something else is using the machine, so that a measurement would not be alone."""

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil

from autoplace.hardware.machine import Machine
from autoplace.hardware.nvml import GpuFacts, visible_gpus

SAMPLE_S = 0.25
BUSY_CORES = 0.5
"""Host CPU time of others, in cores, from which on the host is busy; a quarter of big hosts."""
BUSY_SHARE = 0.25
BUSY_UTILISATION_PERCENT = 10


def busy_reason(
    machine: Machine, *, own_pids: Collection[int] = (), sample_s: float = SAMPLE_S
) -> str | None:
    """What else runs on the machine's GPUs or host; None where it is ours alone.

    Takes `sample_s` seconds, in which the caller does nothing. This process, its parents and
    their children never count, nor do `own_pids`. On an emulated machine only the host counts.
    """
    own = own_process_ids() | set(own_pids)
    cores = foreign_cores(own, sample_s=sample_s)
    if cores > max(BUSY_CORES, BUSY_SHARE * machine.num_cores):
        return f"other processes use {cores:.1f} of the host's {machine.num_cores} cores"
    return gpus_in_use(machine, own_pids=own_pids)


def gpus_in_use(machine: Machine, *, own_pids: Collection[int] = ()) -> str | None:
    """What else computes on a real GPU of the machine; None where nothing does.

    Whose processes never count: as for `busy_reason`.
    """
    used = {gpu.uuid for gpu in machine.gpus if gpu.uuid is not None}
    if machine.emulated or not used:
        return None
    gpus = [gpu for gpu in visible_gpus() if gpu.uuid in used]
    return gpu_busy_reason(gpus, own_process_ids() | set(own_pids))


def gpu_busy_reason(gpus: Sequence[GpuFacts], own: Collection[int]) -> str | None:
    """The first GPU that a process other than ours computes on.

    In a container NVML gives process ids of the host's, or none; then the utilisation, which is
    ours when we are idle, is what tells.
    """
    for gpu in gpus:
        foreign = [pid for pid in gpu.process_ids if pid not in own and psutil.pid_exists(pid)]
        if foreign:
            return f"process {foreign[0]} uses {gpu.nvml_name} ({gpu.pci_address})"
        if gpu.utilisation_percent > BUSY_UTILISATION_PERCENT:
            return (
                f"{gpu.nvml_name} ({gpu.pci_address}) is {gpu.utilisation_percent} % busy "
                "while we are idle"
            )
    return None


def foreign_cores(own: Collection[int], *, sample_s: float) -> float:
    """CPU time a second that processes other than `own` take: 1.0 is one core. 0 without /proc."""
    before_s, own_before_s, start_s = _busy_s(), _own_s(own), time.monotonic()
    time.sleep(sample_s)
    elapsed_s = time.monotonic() - start_s
    all_s, own_s = _busy_s() - before_s, max(0.0, _own_s(own) - own_before_s)
    return max(0.0, (all_s - own_s) / elapsed_s)


def own_process_ids() -> set[int]:
    """This process, the ancestors that run autoplace, and all of their descendants."""
    me = psutil.Process()
    top = me
    for parent in me.parents():
        if not _runs_autoplace(parent):
            break
        top = parent
    return {top.pid, me.pid, *(child.pid for child in top.children(recursive=True))}


def _runs_autoplace(process: psutil.Process) -> bool:
    try:
        return any(mark in word for word in process.cmdline() for mark in ("autoplace", "raylet"))
    except psutil.Error:
        return False


def _busy_s() -> float:
    """CPU seconds since boot that were not idle, over all cores."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _own_s(own: Collection[int]) -> float:
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(_process_ticks(pid) for pid in own) / ticks


def _process_ticks(pid: int) -> int:
    """User and system ticks (fields 14 and 15 of proc(5)'s stat); 0 once the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
