"""How many bytes an assignment needs on each device, when it stands and while it loads.

For `builtin` these are the bytes that the engine declares to its ledger, exactly: tests hold the
two together. For KTransformers they follow its memory profile (`placement.ktransformers_memory`).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.architectures.geometry import Geometry, Mla
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.catalog.engines import engine
from autoplace.errors import AutoplaceError, DoesNotFitError
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment
from autoplace.placement.ktransformers_memory import plan_ktransformers
from autoplace.placement.module_bytes import DEFAULT_DEVICE, module_bytes
from autoplace.placement.settings import KV_TYPES, RunSettings
from autoplace.placement.totals import DeviceMemory
from autoplace.placement.workspace import graph_bytes, workspace_bytes
from autoplace.units import format_bytes
from autoplace.workload import Workload

HOST = "cpu"


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per device name. Devices that hold nothing may be absent."""

    by_device: Mapping[str, DeviceMemory]
    includes_context: bool = False
    """Whether the GPUs' runtime contexts are counted in: then a GPU's reserve is none of them."""

    def budget_bytes(self, machine: Machine, name: str) -> int:
        """What may be used of a device: nothing of one that the machine lacks."""
        device = machine.by_name.get(name)
        if device is None:
            return 0
        is_counted = self.includes_context and device.is_gpu
        return device.memory_bytes if is_counted else device.budget_bytes

    def overrun_bytes(self, machine: Machine) -> Mapping[str, int]:
        """Peak minus budget per device: negative where there is room, a constraint of the search.

        Devices that the plan uses and the machine lacks have a budget of nothing.
        """
        names = dict.fromkeys([*machine.by_name, *self.by_device])
        return {name: self._peak(name) - self.budget_bytes(machine, name) for name in names}

    def check(self, machine: Machine) -> None:
        """Raise `DoesNotFitError`, naming every device that is too small, not only the first."""
        problems = [
            f"{name} needs {format_bytes(self._peak(name))} ({self._peak(name)} B) but has "
            f"{format_bytes(self.budget_bytes(machine, name))} ({over} B too little)"
            for name, over in self.overrun_bytes(machine).items()
            if over > 0
        ]
        if problems:
            raise DoesNotFitError("; ".join(problems))

    def _peak(self, device: str) -> int:
        memory = self.by_device.get(device)
        return memory.peak if memory else 0


def plan_memory(
    spec: ModelSpec,
    assignment: Assignment,
    *,
    workload: Workload,
    settings: RunSettings,
    dtype_bytes: int = 2,
    numa_copies: int = 1,
) -> MemoryPlan:
    """Bytes of an assignment under its engine's memory profile.

    `numa_copies`: KTransformers built with USE_NUMA=1 keeps the experts once a node.

    Raise `AutoplaceError` for an engine that rule files do not drive.
    """
    chosen = engine(assignment.engine)
    if not chosen.uses_rules:
        raise AutoplaceError(
            f"{chosen.name} is not driven by rule files: its memory cannot be planned from one"
        )
    if chosen.name == "builtin":
        return MemoryPlan(_plan_builtin(spec, assignment, workload, settings, dtype_bytes))
    planned = plan_ktransformers(spec, assignment, chosen.memory, workload, numa_copies=numa_copies)
    return MemoryPlan(planned, includes_context=chosen.memory.context_bytes > 0)


def layer_cache_bytes(geometry: Geometry, *, context_tokens: int, kv_type: str) -> int:
    """Bytes of one layer's KV cache: a compressed row a token (MLA), or keys and values (GQA)."""
    attention = geometry.attention
    if isinstance(attention, Mla):
        width = attention.kv_lora_rank + attention.qk_rope_dim
    else:
        width = 2 * attention.num_kv_heads * attention.head_dim
    n_bytes, num_values = KV_TYPES[kv_type]
    return context_tokens * width * n_bytes // num_values


def _plan_builtin(
    spec: ModelSpec,
    assignment: Assignment,
    workload: Workload,
    settings: RunSettings,
    dtype_bytes: int,
) -> Mapping[str, DeviceMemory]:
    """Modules load in the spec's order; the cache and the workspace follow (`workspace.py`)."""
    weights: dict[str, int] = defaultdict(int, {HOST: 0})
    peaks: dict[str, int] = defaultdict(int)
    sizes = module_bytes(spec, dtype_bytes=dtype_bytes, scale_bytes=2)
    for device, size in sizes.of_assignment(assignment):
        transient = size.host_transient_there if device == HOST else size.host_transient
        peaks[HOST] = max(peaks[HOST], weights[HOST] + transient)
        if device != HOST:
            peaks[device] = max(peaks[device], weights[device] + size.gpu_peak)
        weights[device] += size.weights
    cache = _cache_by_device(spec, assignment, workload, settings)
    workspace = workspace_bytes(
        spec.geometry,
        prefill_chunk=settings.prefill_chunk,
        context_tokens=workload.context_tokens,
    )
    graphs = graph_bytes(spec.geometry, context_tokens=workload.context_tokens)
    return {
        device: DeviceMemory(
            weights=weights.get(device, 0),
            kv_cache=cache.get(device, 0),
            workspace=workspace + (0 if device == HOST else graphs) if device in weights else 0,
            load_peak=max(weights.get(device, 0), peaks.get(device, 0)),
        )
        for device in sorted({*weights, *cache})
    }


def _cache_by_device(
    spec: ModelSpec, assignment: Assignment, workload: Workload, settings: RunSettings
) -> Mapping[str, int]:
    """Each layer's cache is where its attention is."""
    cache: dict[str, int] = defaultdict(int)
    layer_bytes = layer_cache_bytes(
        spec.geometry, context_tokens=workload.context_tokens, kv_type=settings.kv_type
    )
    for attention in spec.of_role(Role.ATTENTION):
        assigned = assignment.modules.get(attention.path)
        cache[assigned.device if assigned else DEFAULT_DEVICE] += layer_bytes
    return cache
