"""What is wrong with a rule file for a model, an engine and a machine, by simulating its walk.

Every check looks at the assignment, so hand-written, faulty and compiled files are judged alike.
Findings with the same cause are one finding: modules are gathered by check, rule and message.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.catalog.engines import ENGINES
from autoplace.catalog.operators import OPERATORS
from autoplace.errors import did_you_mean
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.rules.families import injections
from autoplace.rules.finding import Finding, Severity, refuse
from autoplace.rules.rule import Rule
from autoplace.rules.vocabulary import (
    LINEAR_ROLES,
    option_problems,
    wrapped_kind,
)

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE

_ON_LAYER = (Role.ATTENTION, Role.NORM, Role.KV_B, Role.ROUTER, Role.ROTARY, Role.SHARED_GATE)
"""Modules that compute where the activations are."""


def refuse_unrunnable(
    assignment: Assignment,
    spec: ModelSpec,
    machine: Machine,
    *,
    rules: Sequence[Rule] = (),
    source: str = "the rules",
) -> None:
    """Raise one `AutoplaceError` naming the first few things that the engine cannot run."""
    refuse(lint(assignment, spec, machine=machine, rules=rules), source=source)


def lint(
    assignment: Assignment,
    spec: ModelSpec,
    *,
    machine: Machine | None = None,
    rules: Sequence[Rule] = (),
) -> tuple[Finding, ...]:
    """All findings, errors first. Without a machine, what depends on one is not checked."""
    subject = _Subject(assignment, spec, machine, tuple(rules))
    for check in _CHECKS:
        check(subject)
    order = list(Severity)
    return tuple(sorted(subject.findings(), key=lambda finding: order.index(finding.severity)))


@dataclass
class _Subject:
    """What is checked, and what was found so far."""

    assignment: Assignment
    spec: ModelSpec
    machine: Machine | None
    rules: tuple[Rule, ...]
    _found: dict[tuple[Severity, str, str, str, int | None], set[int]] = field(default_factory=dict)

    @property
    def is_builtin(self) -> bool:
        return self.assignment.engine == "builtin"

    @property
    def is_ktransformers(self) -> bool:
        return self.assignment.engine.startswith("ktransformers")

    def report(
        self,
        severity: Severity,
        code: str,
        message: str,
        *,
        layer: int | None = None,
        rule: int | None = None,
        remedy: str = "",
    ) -> None:
        """Note a finding; those that differ only in their layer become one."""
        layers = self._found.setdefault((severity, code, message, remedy, rule), set())
        if layer is not None:
            layers.add(layer)

    def findings(self) -> Iterator[Finding]:
        for (severity, code, message, remedy, rule), layers in self._found.items():
            known = rule is not None and rule < len(self.rules)
            yield Finding(
                severity,
                code,
                message,
                rule=None if rule is None else rule + 1,
                line=(self.rules[rule].line or None) if known and rule is not None else None,
                layers=tuple(sorted(layers)),
                remedy=remedy,
            )

    def entries(self) -> Iterator[tuple[Module, ModuleAssignment]]:
        """The model's own modules with what the rules say of them."""
        for module in self.spec.modules:
            entry = self.assignment.modules.get(module.path)
            if entry is not None:
                yield module, entry

    @cached_property
    def start_device(self) -> str:
        first = self.spec.of_role(Role.ATTENTION)[0].path
        entry = self.assignment.modules.get(first)
        return entry.device if entry else "cuda:0"

    @cached_property
    def stream(self) -> tuple[str, ...]:
        """Device of the activations in each layer, by the transfer map as the engine reads it."""
        moves = self.assignment.transfer_map
        device = self.start_device
        devices = []
        for index in range(self.spec.geometry.num_layers):
            target = moves.get(index) if type(moves.get(index)) is str else None
            device = str(target) if target is not None else device
            devices.append(device)
        return tuple(devices)


def _short(module: Module) -> str:
    """A module's name without its layer, so that findings of many layers read alike."""
    if module.layer is None:
        return module.path
    return module.path.removeprefix(f"model.layers.{module.layer}.")


def _list(names: Iterable[str], shown: int = 3) -> str:
    """`a is`, `a, b and 4 more are`."""
    names = list(names)
    if len(names) == 1:
        return f"{names[0]} is"
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more} are"


def _check_coverage(subject: _Subject) -> None:
    """Modules that the walk never reaches, or that no rule matches although they need one."""
    for module in subject.spec.modules:
        if module.path not in subject.assignment.modules and module.role is not Role.CONTAINER:
            subject.report(
                ERROR,
                "not-visited",
                f"{_short(module)} is never visited: a rule above it says 'recursive: false'",
                layer=module.layer,
            )
    for module, entry in subject.entries():
        if entry.rule is None and module.layer is not None and module.role in LINEAR_ROLES:
            subject.report(
                WARNING,
                "unmatched",
                f"no rule matches the {module.role.value.replace('_', ' ')}s, so they load plain "
                f"onto {entry.device}",
                layer=module.layer,
                remedy="check the layer numbers of the patterns",
            )


def _check_experts(subject: _Subject) -> None:
    for module, entry in subject.entries():
        if module.role is not Role.EXPERTS:
            continue
        visited = f"{module.path}.0" in subject.assignment.modules
        if entry.class_name is None:
            subject.report(
                ERROR,
                "experts-plain",
                "the routed experts are not replaced, and a GGUF has no tensors for single experts",
                layer=module.layer,
                rule=entry.rule,
                remedy="match mlp.experts and replace it by KTransformersExperts",
            )
        elif visited:
            subject.report(
                ERROR,
                "experts-recursive",
                "the walk goes on into every single expert, for which a GGUF has no tensors",
                layer=module.layer,
                rule=entry.rule,
                remedy="write recursive: false, unquoted",
            )


def _check_kv_b(subject: _Subject) -> None:
    for module, entry in subject.entries():
        if module.role is Role.KV_B and entry.class_name is not None:
            subject.report(
                ERROR,
                "kv-b-replaced",
                "kv_b_proj must not be replaced: attention reads its plain weight",
                layer=module.layer,
                rule=entry.rule,
                remedy="exclude it, as in (?!self_attn\\.kv_b_proj$)",
            )


def _check_embedding(subject: _Subject) -> None:
    for module, entry in subject.entries():
        if module.role is Role.EMBEDDING and entry.device != "cpu":
            subject.report(
                ERROR,
                "embedding-on-gpu",
                f"{module.path} is on {entry.device}, but tokens are embedded on the cpu",
                rule=entry.rule,
                remedy="give it generate_device: cpu",
            )


def _check_classes(subject: _Subject) -> None:
    """The right class for each role: wrappers on what they wrap, family classes where needed."""
    wanted = injections(subject.spec, engine=subject.assignment.engine)
    for module, entry in subject.entries():
        kind = wrapped_kind(entry.class_name)
        if kind == "linear" and module.role not in (
            *LINEAR_ROLES,
            Role.KV_B,
            Role.ROUTER,
            Role.SHARED_GATE,
            Role.LM_HEAD,
        ):
            _wrong_class(subject, module, entry, "a linear")
        elif kind == "experts" and module.role is not Role.EXPERTS:
            _wrong_class(subject, module, entry, "a layer's routed experts")
        elif kind is None and entry.class_name and module.role in (*LINEAR_ROLES, Role.EXPERTS):
            _wrong_class(subject, module, entry, "another kind of module")
        injection = wanted.get(module.role)
        if injection is None or not injection.covers(module) or entry.class_name:
            continue
        if subject.is_ktransformers:
            severity = ERROR if module.role is Role.ROTARY else WARNING
            subject.report(
                severity,
                f"{module.role.value}-plain",
                f"{_short(module)} is not replaced by {injection.replace_class.rpartition('.')[2]}",
                layer=module.layer,
                rule=entry.rule,
            )


def _wrong_class(subject: _Subject, module: Module, entry: ModuleAssignment, what: str) -> None:
    assert entry.class_name is not None
    subject.report(
        ERROR,
        "wrong-class",
        f"{_short(module)} is replaced by {entry.class_name.rpartition('.')[2]}, "
        f"which is for {what}",
        layer=module.layer,
        rule=entry.rule,
    )


def _check_transfer_map(subject: _Subject) -> None:
    model = subject.assignment.modules.get("model")
    rule = model.rule if model else None
    num_layers = subject.spec.geometry.num_layers
    for key, device in subject.assignment.transfer_map.items():
        if type(key) is not int:
            subject.report(
                ERROR,
                "transfer-key",
                f"the transfer_map's key {key!r} is no integer, so the "
                "activations never move there",
                rule=rule,
                remedy=f"write {key!s}: without quotes",
            )
        elif not 0 <= key < num_layers:
            subject.report(
                ERROR,
                "transfer-key",
                f"the transfer_map names layer {key}, but the layers are 0 to {num_layers - 1}",
                rule=rule,
            )
        if not isinstance(device, str) or device == "cuda":
            subject.report(
                ERROR,
                "transfer-device",
                f"the transfer_map's device {device!r} is none",
                rule=rule,
                remedy="write cpu or cuda:N",
            )
    if model is not None and model.class_name is not None:
        threshold = model.kwargs.get("per_layer_prefill_intput_threshold", 30000)
        if threshold:
            subject.report(
                WARNING,
                "layerwise-prefill",
                "per_layer_prefill_intput_threshold is "
                f"{threshold!r}: prompts beyond it are prefilled layer by layer, which breaks with "
                "several GPUs",
                rule=rule,
                remedy="write per_layer_prefill_intput_threshold: 0",
            )


def _check_devices(subject: _Subject) -> None:
    """Whatever computes with the activations must be where they are."""
    stray: dict[tuple[int | None, str, str], dict[str, set[int]]] = {}
    for module, entry in subject.entries():
        if module.layer is None:
            continue
        stream = subject.stream[module.layer]
        on_layer = module.role in _ON_LAYER or (
            module.role in LINEAR_ROLES and (subject.is_ktransformers or entry.operator is None)
        )
        if on_layer and entry.device != stream and entry.operator != "KLinearCPUInfer":
            names = stray.setdefault((entry.rule, entry.device, stream), {})
            names.setdefault(_short(module), set()).add(module.layer)
        if entry.operator in ("KExpertsCPU", "KLinearCPUInfer"):
            _check_out_device(subject, module, entry, stream)
    for (rule, device, stream), names in stray.items():
        for layer in sorted(set().union(*names.values())):
            subject.report(
                ERROR,
                "wrong-device",
                f"{_list(names)} on {device}, but the activations are on {stream}",
                layer=layer,
                rule=rule,
                remedy="" if rule is not None else "no rule matches them",
            )
    _check_end_devices(subject)


def _check_out_device(
    subject: _Subject, module: Module, entry: ModuleAssignment, stream: str
) -> None:
    given = entry.kwargs.get("out_device", "cuda")
    device = "cuda:0" if given == "cuda" else given
    if device != stream:
        missing = (
            "" if "out_device" in entry.kwargs else ", the default where out_device is missing"
        )
        subject.report(
            ERROR,
            "out-device",
            f"{_short(module)} returns to {device}{missing}, but the activations are on {stream}",
            layer=module.layer,
            rule=entry.rule,
            remedy=f"write out_device: {stream}",
        )


def _check_end_devices(subject: _Subject) -> None:
    last = subject.stream[-1]
    for module, entry in subject.entries():
        is_end = module.role is Role.LM_HEAD and entry.operator is None
        if module.layer is None and (module.role is Role.NORM or is_end) and entry.device != last:
            subject.report(
                ERROR,
                "wrong-device",
                f"{module.path} is on {entry.device}, but the activations end on {last}",
                rule=entry.rule,
            )


def _check_operators(subject: _Subject) -> None:
    for module, entry in subject.entries():
        kind = wrapped_kind(entry.class_name)
        if kind is None:
            continue
        operator = OPERATORS.get(entry.operator or "")
        if operator is None or operator.kind != kind:
            known = [name for name, known in OPERATORS.items() if known.kind == kind]
            subject.report(
                ERROR,
                "unknown-operator",
                f"there is no operator {entry.operator!r} for {kind}"
                f"{did_you_mean(str(entry.operator), known)}",
                layer=module.layer,
                rule=entry.rule,
            )
            continue
        on = "cpu" if entry.device == "cpu" else "gpu"
        if on not in operator.device_kinds:
            subject.report(
                ERROR,
                "operator-device",
                f"{operator.name} runs on a {' or '.join(sorted(operator.device_kinds))}, "
                f"not on {entry.device}",
                layer=module.layer,
                rule=entry.rule,
            )
        for problem in option_problems(
            operator.name, entry.kwargs, engine=subject.assignment.engine
        ):
            subject.report(ERROR, "bad-option", problem, layer=module.layer, rule=entry.rule)


def _check_prefill(subject: _Subject) -> None:
    """KTransformers constructs the prefill operator, though it never runs."""
    if not subject.is_ktransformers:
        return
    for module, entry in subject.entries():
        kind = wrapped_kind(entry.class_name)
        if kind is None:
            continue
        default = "KLinearTorch" if kind == "linear" else "KExpertsTorch"
        name = entry.kwargs.get("prefill_op", default)
        operator = OPERATORS.get(name) if isinstance(name, str) else None
        if operator is None or operator.kind != kind:
            message = f"prefill_op is {name!r}, with which loading fails"
        else:
            on = "cpu" if entry.kwargs.get("prefill_device", "cuda") == "cpu" else "gpu"
            if on in operator.device_kinds:
                continue
            message = f"prefill_op {name} does not run on its prefill_device"
        subject.report(
            ERROR,
            "prefill-operator",
            message,
            layer=module.layer,
            rule=entry.rule,
            remedy=f"write prefill_op: {default}",
        )


def _check_engine(subject: _Subject) -> None:
    """Facts about the engine: which experts it loads on a GPU, and what they cost."""
    profile = ENGINES[subject.assignment.engine]
    for module, entry in subject.entries():
        if wrapped_kind(entry.class_name) != "experts" or entry.device == "cpu":
            continue
        if entry.operator not in profile.gpu_experts:
            loads = " or ".join((*profile.gpu_experts, "KExpertsCPU"))
            subject.report(
                ERROR,
                "engine",
                f"{entry.operator} cannot load on a GPU in {profile.name}",
                layer=module.layer,
                rule=entry.rule,
                remedy=f"use {loads}",
            )
        elif profile.gpu_experts_disable_cuda_graph:
            subject.report(
                ADVICE,
                "cuda-graph",
                "experts on a GPU need CUDA graphs off for the whole model",
                layer=module.layer,
                remedy="launch with --use_cuda_graph False",
            )


def _check_machine(subject: _Subject) -> None:
    """Devices that exist, and what they can run."""
    machine = subject.machine
    if machine is None:
        return
    exists = ", ".join(machine.by_name)
    for module, entry in subject.entries():
        matters = bool(module.tensors) or module.role is Role.ATTENTION
        device = machine.by_name.get(entry.device)
        if device is None and matters:
            subject.report(
                ERROR,
                "no-such-device",
                f"modules are on {entry.device}, but {machine.name} has {exists}",
                layer=module.layer,
                rule=entry.rule,
                remedy="" if entry.rule is not None else "no rule matches them",
            )
        elif device is not None:
            _check_capability(subject, module, entry, device)


def _check_capability(
    subject: _Subject, module: Module, entry: ModuleAssignment, device: Device
) -> None:
    operator = OPERATORS.get(entry.operator or "")
    least = operator.compute_capability if operator else None
    found = device.compute_capability
    if operator is not None and least is not None and found is not None and found < least:
        subject.report(
            ERROR,
            "compute-capability",
            f"{operator.name} needs compute capability {least[0]}.{least[1]}, "
            f"but {device.name} ({device.model}) has {found[0]}.{found[1]}",
            layer=module.layer,
            rule=entry.rule,
            remedy="use KLinearTorch or KExpertsTorch there",
        )


def _check_dead_rules(subject: _Subject) -> None:
    used = {entry.rule for entry in subject.assignment.modules.values()}
    for index in range(len(subject.rules)):
        if index not in used:
            subject.report(
                WARNING, "dead-rule", "the rule is the first match of no module", rule=index
            )


_CHECKS: Sequence[Callable[[_Subject], None]] = (
    _check_coverage,
    _check_experts,
    _check_kv_b,
    _check_embedding,
    _check_classes,
    _check_transfer_map,
    _check_devices,
    _check_operators,
    _check_prefill,
    _check_engine,
    _check_machine,
    _check_dead_rules,
)
