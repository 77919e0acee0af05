"""Bytes that a placement takes under any engine: by its rules, or by what its flags do with it."""

from autoplace.architectures.spec import ModelSpec
from autoplace.catalog import llama_cpp
from autoplace.export.llama_cpp import args_of_placement, buffers_of
from autoplace.export.llama_cpp.memory import plan_llama_cpp
from autoplace.hardware.machine import Machine
from autoplace.placement.expand import Expander
from autoplace.placement.memory import MemoryPlan, plan_memory
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload


class PlacementMemory:
    """Plans placements of one model on one machine, each by its own engine."""

    def __init__(self, spec: ModelSpec, machine: Machine, *, dtype_bytes: int = 2) -> None:
        self._spec = spec
        self._machine = machine
        self._dtype_bytes = dtype_bytes
        self._expander = Expander(spec)
        self._known: dict[tuple[Placement, RunSettings, Workload], MemoryPlan] = {}

    def plan(self, placement: Placement, settings: RunSettings, workload: Workload) -> MemoryPlan:
        """Worked out once. Raises `AutoplaceError` for what the engine's flags cannot say."""
        key = (placement, settings, workload)
        if key not in self._known:
            self._known[key] = self._plan(*key)
        return self._known[key]

    def _plan(self, placement: Placement, settings: RunSettings, workload: Workload) -> MemoryPlan:
        if placement.engine != llama_cpp.ENGINE:
            return plan_memory(
                self._spec,
                self._expander.expand(placement),
                workload=workload,
                settings=settings,
                dtype_bytes=self._dtype_bytes,
            )
        buffers = buffers_of(self._machine)
        context = workload.context_tokens
        args = args_of_placement(
            placement,
            settings,
            self._spec,
            buffers,
            context_tokens=context,
            expander=self._expander,
        )
        return plan_llama_cpp(self._spec, args, buffers, context_tokens=context)
