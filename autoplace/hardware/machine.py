"""A machine: devices by the names that rules use, and the links between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Device:
    """A place for modules: the host (`cpu`), a GPU (`cuda:0`, …) or an RPC server (`rpc:0`, …)."""

    name: str
    model: str
    """What is sold: `RTX-A6000`, `EPYC-9xx4-12ch-DDR5-4800`."""
    memory_bytes: int
    reserve_bytes: int
    """Kept free: the runtime context of a real GPU, the operating system on the host."""
    bandwidth_bytes_per_s: float
    flops: float
    """Dense bf16."""
    compute_capability: tuple[int, int] | None = None
    uuid: str | None = None
    """Of a real GPU only."""
    has_bf16: bool = True
    """Whether it multiplies bf16 by instructions of its own, or has to widen it to float32."""
    endpoint: str | None = None
    """`host:port` of the llama.cpp RPC server that the device is; None for all others."""

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    @property
    def budget_bytes(self) -> int:
        """What a placement may use."""
        return self.memory_bytes - self.reserve_bytes


@dataclass(frozen=True)
class Link:
    """One direction between two devices."""

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Machine:
    """The devices a placement is for. `emulated`: its GPUs are budgets in host memory."""

    name: str
    devices: tuple[Device, ...]
    """The host first, then the GPUs in PCI order."""
    links: tuple[Link, ...] = ()
    emulated: bool = False
    num_cores: int = 1
    """Physical cores of the host: the most CPU threads that are tried."""
    numa_nodes: int = 1

    @property
    def host(self) -> Device:
        return self.devices[0]

    @property
    def gpus(self) -> tuple[Device, ...]:
        return self.devices[1:]

    @cached_property
    def by_name(self) -> Mapping[str, Device]:
        return {device.name: device for device in self.devices}
