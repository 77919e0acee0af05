"""The real GPUs through NVML: in PCI order, known by UUID, never through torch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

FALLBACK_PCIE_GEN = 3


@dataclass(frozen=True)
class GpuFacts:
    """One card as the driver describes it now."""

    nvml_name: str
    uuid: str
    pci_address: str
    memory_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int]
    bandwidth_bytes_per_s: float
    """Bus width times memory clock: 0 where the driver does not say."""
    pcie_gen: int
    process_ids: tuple[int, ...]
    utilisation_percent: int


def visible_gpus() -> tuple[GpuFacts, ...]:
    """All GPUs in PCI order, or those that `CUDA_VISIBLE_DEVICES` names (index or UUID).

    Empty where there is no NVIDIA driver. Indices count in PCI order.
    """
    with _nvml() as is_there:
        if not is_there:
            return ()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        gpus = sorted((_facts(handle) for handle in handles), key=lambda gpu: gpu.pci_address)
    return select_visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def select_visible(gpus: Sequence[GpuFacts], visible: str | None) -> tuple[GpuFacts, ...]:
    """The GPUs a `CUDA_VISIBLE_DEVICES` value leaves; as in CUDA an unknown entry ends the list."""
    if visible is None:
        return tuple(gpus)
    chosen = set()
    for entry in (word.strip() for word in visible.split(",")):
        found = next(
            (
                i
                for i, gpu in enumerate(gpus)
                if entry == str(i) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))
            ),
            None,
        )
        if found is None:
            break
        chosen.add(found)
    return tuple(gpus[i] for i in sorted(chosen))


@contextmanager
def _nvml() -> Iterator[bool]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def _facts(handle: Any) -> GpuFacts:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle, default=[])
    utilisation = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle, default=None)
    return GpuFacts(
        nvml_name=_word(pynvml.nvmlDeviceGetName(handle)),
        uuid=_word(pynvml.nvmlDeviceGetUUID(handle)),
        pci_address=_word(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        memory_bytes=memory.total,
        free_bytes=memory.free,
        compute_capability=(major, minor),
        bandwidth_bytes_per_s=_bandwidth(handle),
        pcie_gen=_ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle, default=FALLBACK_PCIE_GEN),
        process_ids=tuple(process.pid for process in processes),
        utilisation_percent=utilisation.gpu if utilisation else 0,
    )


def _bandwidth(handle: Any) -> float:
    """Two transfers a clock (as NVML counts memory clocks), over the width of the bus."""
    width_bits = _ask(pynvml.nvmlDeviceGetMemoryBusWidth, handle, default=0)
    clock_mhz = _ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM, default=0)
    return float(2 * clock_mhz * 1e6 * width_bits / 8)


def _ask(question: Any, *arguments: Any, default: Any) -> Any:
    """What some drivers, cards or containers do not answer."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return default


def _word(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
