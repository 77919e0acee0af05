"""What a rule file should say of each module, devices and split as its author meant them."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoplace.architectures.spec import Module, Role
from autoplace.catalog.engines import engine
from autoplace.catalog.operators import OPERATORS, operators_of
from autoplace.placement.assignment import ModuleAssignment, Value
from autoplace.placement.situation import reassigned
from autoplace.rules.check_transfer import moves_of
from autoplace.rules.expressible import gpu_expert_types_missing
from autoplace.rules.families import Injection, experts_class, injections, is_served
from autoplace.rules.subject import Subject
from autoplace.rules.vocabulary import (
    LINEAR_ROLES,
    WRAPPED_LINEAR,
    options_of,
    wrapped_kind,
)

_FALLBACK = {"linear": "KLinearTorch", "experts": "KExpertsCPU"}


@dataclass(frozen=True)
class Wanted:
    """One module's right entry."""

    replace_class: str
    kwargs: Mapping[str, Value]
    recursive: bool = True

    @property
    def key(self) -> tuple[object, ...]:
        return self.replace_class, repr(dict(self.kwargs)), self.recursive


class Mender:
    """Answers for every module that matters what its rule should say."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._spec = subject.spec
        self._engine = engine(subject.assignment.engine)
        self._injections = injections(subject.spec, engine=self._engine.name)
        self._served = is_served(subject.spec, engine=self._engine.name)
        experts = experts_class(subject.spec, engine=self._engine.name)
        self._classes = {"linear": WRAPPED_LINEAR, "experts": experts}
        self._by_role: dict[Role, dict[int, list[Module]]] = {}
        for module in subject.spec.modules:
            if module.layer is not None:
                layers = self._by_role.setdefault(module.role, {})
                layers.setdefault(module.layer, []).append(module)

    def wanted(self, module: Module) -> Wanted | None:
        """None where anything is right."""
        entry = self._subject.assignment.modules.get(module.path)
        if entry is None:
            entry = ModuleAssignment(module.path, "cuda:0")
        homes = self._subject.homes
        home = homes[module.layer] if module.layer is not None else homes[-1]
        home = "cuda:0" if self._served else home
        if module.role is Role.EMBEDDING:
            return _plain("cpu")
        if module.role is Role.MODEL:
            return self._model(entry)
        if module.role is Role.EXPERTS:
            return self._wrapped(module, entry, "experts", home)
        if module.role in (*LINEAR_ROLES, Role.LM_HEAD, Role.ROUTER, Role.SHARED_GATE):
            linear = self._linear(module, entry, home)
            if linear is not None:
                return linear
        injection = self._injections.get(module.role)
        if injection is not None and injection.covers(module):
            return self._injected(entry, injection, home)
        if module.tensors or module.role is Role.ATTENTION:
            return _plain(home)
        return _plain(home) if entry.class_name else None

    def _model(self, entry: ModuleAssignment) -> Wanted | None:
        injection = self._injections.get(Role.MODEL)
        moves: dict[Value, Value] = dict(moves_of(self._subject.homes).items())
        if injection is None or (entry.class_name is None and not moves):
            return None if entry.class_name is None else _plain(self._subject.homes[0])
        known = options_of(injection.replace_class)
        kwargs = {key: value for key, value in entry.kwargs.items() if key in known}
        if entry.class_name is None:
            kwargs = {}
        kwargs["per_layer_prefill_intput_threshold"] = 0
        kwargs.pop("transfer_map", None)
        return Wanted(injection.replace_class, kwargs | ({"transfer_map": moves} if moves else {}))

    def _injected(self, entry: ModuleAssignment, injection: Injection, home: str) -> Wanted | None:
        if not self._subject.is_ktransformers and not entry.class_name:
            return _plain(home)
        known = options_of(injection.replace_class)
        kwargs = {key: value for key, value in entry.kwargs.items() if key in known}
        devices: dict[str, Value] = {"generate_device": home, "prefill_device": home}
        return Wanted(injection.replace_class, kwargs | devices)

    def _linear(self, module: Module, entry: ModuleAssignment, home: str) -> Wanted | None:
        """Replaced linears stay so; unmatched ones do as their like in the nearest layer does."""
        if wrapped_kind(entry.class_name) == "linear":
            return self._wrapped(module, entry, "linear", home)
        if self._served and module.role in (Role.ROUTER, Role.LM_HEAD):
            torch = ModuleAssignment(module.path, home, WRAPPED_LINEAR, "KLinearTorch")
            return self._wrapped(module, torch, "linear", home)
        if module.role in LINEAR_ROLES and entry.rule is None:
            donor = self._donor(module, "linear")
            if donor is not None:
                return self._wrapped(module, donor, "linear", home)
        return None

    def _donor(self, module: Module, kind: str) -> ModuleAssignment | None:
        """What the nearest layer says of such a module."""
        layers = self._by_role.get(module.role, {})
        assert module.layer is not None
        for layer in sorted(layers, key=lambda other: abs(other - (module.layer or 0))):
            for other in layers[layer]:
                entry = self._subject.assignment.modules.get(other.path)
                if entry is not None and wrapped_kind(entry.class_name) == kind:
                    return entry
        return None

    def _wrapped(self, module: Module, entry: ModuleAssignment, kind: str, home: str) -> Wanted:
        if wrapped_kind(entry.class_name) != kind:
            entry = self._donor(module, kind) or ModuleAssignment(
                module.path, "cpu", self._classes[kind], _FALLBACK[kind]
            )
        operator = self._operator(module, entry, kind)
        device = self._device(entry, operator, home, stays=module.role is Role.LM_HEAD)
        if kind == "experts" and device != "cpu":
            missing = gpu_expert_types_missing(self._engine.name, self._spec, module)
            if operator not in self._engine.gpu_experts or missing or self._served:
                operator, device = "KExpertsCPU", "cpu"
        operator = self._capable(operator, device)
        fixed = reassigned(entry, device=device, operator=operator, home=home)
        known = options_of(self._classes[kind])
        kwargs = {key: value for key, value in fixed.kwargs.items() if key in known}
        in_vain = operator == "KExpertsMarlin" and self._subject.is_ktransformers
        if kwargs.get("num_bits") not in (None, 4, 8) or in_vain:
            kwargs.pop("num_bits", None)
        if operator not in ("KLinearCPUInfer", "KExpertsCPU") and "out_device" not in entry.kwargs:
            kwargs.pop("out_device", None)
        return Wanted(self._classes[kind], kwargs, recursive=kind != "experts")

    def _operator(self, module: Module, entry: ModuleAssignment, kind: str) -> str:
        """The operator that is meant: its name spelt right, of the kind, for its device."""
        options = options_of(self._classes[kind])
        names = [known.name for known in operators_of(kind, engine=self._engine.name)]
        meant = entry.operator
        for key, value in entry.kwargs.items():
            near = difflib.get_close_matches(key, sorted(options), n=1, cutoff=0.6)
            if key not in options and near == ["generate_op"] and isinstance(value, str):
                meant = value
        close = difflib.get_close_matches(meant or "", names, n=1, cutoff=0.6)
        operator = close[0] if close else _FALLBACK[kind]
        if kind == "experts" and self._engine.name == "ktransformers-0.2.1":
            operator = "KExpertsMarlin" if operator == "KExpertsTorch" else operator
        if kind == "linear" and entry.device == "cpu" and operator == "KLinearMarlin":
            operator = "KLinearCPUInfer"
        if (
            kind == "experts"
            and entry.device == "cpu"
            and "cpu" not in OPERATORS[operator].device_kinds
        ):
            operator = "KExpertsCPU"
        return operator

    def _device(self, entry: ModuleAssignment, operator: str, home: str, *, stays: bool) -> str:
        kinds = OPERATORS[operator].device_kinds
        if "gpu" not in kinds:
            return "cpu"
        if entry.device == "cpu" and "cpu" in kinds:
            return "cpu"
        free = (
            stays
            or (OPERATORS[operator].kind == "experts" and entry.path)
            or not (self._subject.is_ktransformers)
        )
        machine = self._subject.machine
        exists = machine is None or entry.device in machine.by_name
        return entry.device if free and exists and entry.device != "cpu" else home

    def _capable(self, operator: str, device: str) -> str:
        """Marlin needs a GPU that has its kernel."""
        machine = self._subject.machine
        gpu = machine.by_name.get(device) if machine else None
        least = OPERATORS[operator].compute_capability
        found = gpu.compute_capability if gpu is not None else None
        if least is None or found is None or found >= least:
            return operator
        return "KLinearTorch" if OPERATORS[operator].kind == "linear" else "KExpertsTorch"


def _plain(device: str) -> Wanted:
    return Wanted("default", {"generate_device": device, "prefill_device": device})


def relevant(modules: Iterable[Module], mender: Mender) -> list[tuple[Module, Wanted]]:
    """Modules for which a rule has to say something certain."""
    found = ((module, mender.wanted(module)) for module in modules)
    return [(module, wanted) for module, wanted in found if wanted is not None]
