"""A rule file's meaning on a machine, with what is needed to try it otherwise."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.catalog.engines import Engine, engine
from autoplace.catalog.operators import OPERATORS
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment, ModuleAssignment, Value
from autoplace.placement.memory import MemoryPlan, plan_memory
from autoplace.placement.module_bytes import module_bytes
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload

HOST = "cpu"


@dataclass(frozen=True)
class Situation:
    """What is planned, for what, where."""

    spec: ModelSpec
    assignment: Assignment
    homes: tuple[str, ...]
    """Device of each layer."""
    machine: Machine
    workload: Workload
    settings: RunSettings
    dtype_bytes: int = 2
    numa_copies: int = 1
    experts_on_host_only: bool = False
    """Whether the engine cannot have this family's experts on a GPU."""

    @property
    def engine(self) -> Engine:
        return engine(self.assignment.engine)

    @cached_property
    def plan(self) -> MemoryPlan:
        return plan_memory(
            self.spec,
            self.assignment,
            workload=self.workload,
            settings=self.settings,
            dtype_bytes=self.dtype_bytes,
            numa_copies=self.numa_copies,
        )

    @cached_property
    def over(self) -> Mapping[str, int]:
        """Devices that are too small → bytes that they lack."""
        overrun = self.plan.overrun_bytes(self.machine)
        return {device: n_bytes for device, n_bytes in overrun.items() if n_bytes > 0}

    @property
    def over_gpus(self) -> tuple[str, ...]:
        return tuple(device for device in self.over if device != HOST)

    def room(self, device: str) -> int:
        """Bytes left on a device; negative where it is too small."""
        return -self.plan.overrun_bytes(self.machine).get(device, 0)

    def entry(self, module: Module) -> ModuleAssignment | None:
        return self.assignment.modules.get(module.path)

    @cached_property
    def experts(self) -> Mapping[int, Module]:
        """Layer → its routed experts."""
        return {m.layer: m for m in self.spec.of_role(Role.EXPERTS) if m.layer is not None}

    def expert_layers_on(self, devices: Iterable[str]) -> list[int]:
        wanted = set(devices)
        return [
            layer
            for layer, module in self.experts.items()
            if (entry := self.entry(module)) is not None and entry.device in wanted
        ]

    @property
    def plain_experts(self) -> list[int]:
        """Layers whose experts no operator holds: KTransformers cannot load them."""
        entries = {layer: self.entry(module) for layer, module in self.experts.items()}
        return [layer for layer, entry in entries.items() if not (entry and entry.operator)]

    def bytes_as(self, module: Module, operator: str) -> int:
        """A module's bytes if another operator held it."""
        scale_bytes = self.engine.memory.marlin_scale_bytes
        sizes = module_bytes(self.spec, dtype_bytes=self.dtype_bytes, scale_bytes=scale_bytes)
        return sizes.of(module, ModuleAssignment(module.path, "", operator=operator)).weights

    def with_modules(
        self, modules: Iterable[Module], change: Callable[[ModuleAssignment], ModuleAssignment]
    ) -> "Situation":
        """The same with some modules assigned otherwise."""
        changed = dict(self.assignment.modules)
        for module in modules:
            entry = changed.get(module.path)
            if entry is not None:
                changed[module.path] = change(entry)
        return replace(self, assignment=replace(self.assignment, modules=changed))

    def can_run(self, operator: str, device: str) -> bool:
        """Whether the engine and the GPU run an operator of the catalogue."""
        known = OPERATORS[operator]
        gpu = self.machine.by_name.get(device)
        if gpu is None or self.assignment.engine not in known.engines:
            return False
        least, found = known.compute_capability, gpu.compute_capability
        return not (least and found and found < least)


def reassigned(
    entry: ModuleAssignment, *, device: str, operator: str, home: str, class_name: str | None = None
) -> ModuleAssignment:
    """A module on another device by another operator, with the keywords that a rule needs."""
    prefill = {"linear": "KLinearTorch", "experts": "KExpertsTorch"}[OPERATORS[operator].kind]
    kwargs: dict[str, Value] = dict(entry.kwargs)
    kwargs |= {
        "generate_device": device,
        "prefill_device": home if device == HOST else device,
        "generate_op": operator,
        "prefill_op": prefill,
    }
    if OPERATORS[operator].kind == "experts" or operator == "KLinearCPUInfer":
        kwargs["out_device"] = home
    if not OPERATORS[operator].options or "num_bits" not in OPERATORS[operator].options:
        kwargs.pop("num_bits", None)
    return replace(
        entry,
        device=device,
        operator=operator,
        class_name=class_name or entry.class_name,
        kwargs=kwargs,
    )
