"""The state of the real devices around a trial: memory given back, clocks, throttling."""

import gc
from collections.abc import Mapping

import psutil
import pynvml
import torch

from autoplace.hardware.ledger import Ledger
from autoplace.hardware.machine import Device, Machine
from autoplace.units import MIB, format_bytes

LEFT_OVER_BYTES = 64 * MIB
"""What a CUDA context may grow by without a tensor being left: handles, workspaces of libraries."""
_baseline_bytes: dict[str, int] = {}


def synchronise(machine: Machine) -> None:
    """Wait for every real GPU of the machine."""
    for gpu in _real_gpus(machine):
        torch.cuda.synchronize(gpu.name)


def note_baseline(machine: Machine) -> None:
    """Remember, once a process, how much memory each real GPU has before our first model."""
    for gpu in _real_gpus(machine):
        if gpu.name not in _baseline_bytes:
            torch.zeros(1, device=gpu.name)
            _baseline_bytes[gpu.name] = torch.cuda.mem_get_info(gpu.name)[0]


def not_freed(machine: Machine, ledger: Ledger) -> str:
    """Which devices have not got their memory back after a model was closed; empty if all have."""
    gc.collect()
    problems = [
        f"{name} has {ledger.total(name)} B declared"
        for name in ledger.devices
        if ledger.total(name)
    ]
    for gpu in _real_gpus(machine):
        torch.cuda.empty_cache()
        missing = _baseline_bytes[gpu.name] - torch.cuda.mem_get_info(gpu.name)[0]
        if missing > LEFT_OVER_BYTES:
            problems.append(f"{gpu.name} misses {format_bytes(missing)}")
    return "; ".join(problems)


def recorded_state(machine: Machine) -> Mapping[str, str | int | float]:
    """Clocks, load and throttling now, as far as the machine tells."""
    frequency = psutil.cpu_freq()
    state: dict[str, str | int | float] = {"load_average": round(psutil.getloadavg()[0], 2)}
    if frequency is not None and frequency.current:
        state["cpu_mhz"] = round(frequency.current)
    for gpu in _real_gpus(machine):
        state |= _gpu_state(gpu)
    return state


def _gpu_state(gpu: Device) -> dict[str, str | int | float]:
    """SM clock, temperature, and NVML's mask of why the clocks are what they are."""
    if gpu.uuid is None:
        return {}
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        return {
            f"{gpu.name}_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            f"{gpu.name}_celsius": pynvml.nvmlDeviceGetTemperature(
                handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            f"{gpu.name}_clock_reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }
    except pynvml.NVMLError as error:
        return {f"{gpu.name}_clock_reasons": f"unknown: {error}"}


def _real_gpus(machine: Machine) -> tuple[Device, ...]:
    return () if machine.emulated else machine.gpus
