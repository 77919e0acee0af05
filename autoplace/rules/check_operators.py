"""Checks: whether the operators exist, run on their devices, and get options they know."""

from collections.abc import Iterator

from autoplace.architectures.spec import Module, Role
from autoplace.catalog.operators import OPERATORS, Operator
from autoplace.errors import did_you_mean
from autoplace.hardware.machine import Device
from autoplace.placement.assignment import ModuleAssignment
from autoplace.rules.finding import Severity
from autoplace.rules.subject import Subject, is_device, layers_of
from autoplace.rules.vocabulary import option_problems, wrapped_kind

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE
ELSEWHERE = {
    "KLinearFP8": "it takes FP8 weights of KTransformers' own hybrid safetensors, not a GGUF's",
    "KLinearQ8": "it dequantises the whole weight at every call, in float32",
    "KLinearIPEXLLM": "it runs on Intel GPUs (xpu)",
}
"""Linears that KTransformers has beside those of the catalogue (rules section 1.3)."""
_NAME_UNKNOWN = "injection stops: the wrapper asserts that it knows the name"
_DEVICE_REFUSED = "its constructor asserts the device, so injection stops"
_ON_CPU = {"linear": "KLinearCPUInfer", "experts": "KExpertsCPU"}
_ON_GPU = {"linear": "KLinearMarlin or KLinearTorch", "experts": "KExpertsMarlin or KExpertsTorch"}


def wrapped(subject: Subject) -> Iterator[tuple[Module, ModuleAssignment, str]]:
    """Modules that a wrapper replaces, with its kind."""
    for module, entry in subject.entries():
        kind = wrapped_kind(entry.class_name)
        if kind is not None:
            yield module, entry, kind


def _check_operators(subject: Subject) -> None:
    for module, entry, kind in wrapped(subject):
        operator = OPERATORS.get(entry.operator or "")
        if entry.operator in ELSEWHERE and kind == "linear":
            _report_elsewhere(subject, module, entry)
            continue
        if operator is None or operator.kind != kind:
            known = [name for name, known in OPERATORS.items() if known.kind == kind]
            subject.report_at(
                module,
                entry,
                ERROR,
                "unknown-operator",
                f"there is no operator {entry.operator!r} for {kind}"
                f"{did_you_mean(str(entry.operator), known)}",
                effect=_NAME_UNKNOWN,
            )
            continue
        if kind == "linear" and subject.assignment.engine not in operator.engines:
            _report_later(subject, module, entry, operator)
        _check_device(subject, module, entry, operator)
        for problem in option_problems(
            operator.name, entry.kwargs, engine=subject.assignment.engine
        ):
            subject.report(
                ERROR, "bad-option", problem, layers=layers_of([module]), rules=[entry.rule]
            )


def _report_elsewhere(subject: Subject, module: Module, entry: ModuleAssignment) -> None:
    subject.report_at(
        module,
        entry,
        ERROR,
        "unsupported-operator",
        f"{entry.operator} is not for this: {ELSEWHERE[entry.operator or '']}",
        effect="its bytes and its speed are not known here",
        remedy="use KLinearMarlin or KLinearTorch",
    )


def _report_later(
    subject: Subject, module: Module, entry: ModuleAssignment, operator: Operator
) -> None:
    subject.report_at(
        module,
        entry,
        ERROR,
        "engine",
        f"{operator.name} is not in {subject.assignment.engine}",
        effect=_NAME_UNKNOWN,
        remedy="use KLinearMarlin, the same bytes",
    )


def _check_device(
    subject: Subject, module: Module, entry: ModuleAssignment, operator: Operator
) -> None:
    on = "cpu" if entry.device == "cpu" else "gpu"
    if on in operator.device_kinds:
        return
    other = (_ON_CPU if on == "cpu" else _ON_GPU)[operator.kind]
    subject.report_at(
        module,
        entry,
        ERROR,
        "operator-device",
        f"{operator.name} runs on a {' or '.join(sorted(operator.device_kinds))}, "
        f"not on {entry.device}",
        effect=_DEVICE_REFUSED,
        remedy=f"use {other} there, or another generate_device",
    )


def _check_prefill(subject: Subject) -> None:
    """KTransformers constructs the prefill operator, though it never runs."""
    if not subject.is_ktransformers:
        return
    for module, entry, kind in wrapped(subject):
        default = "KLinearTorch" if kind == "linear" else "KExpertsTorch"
        name = entry.kwargs.get("prefill_op", default)
        operator = OPERATORS.get(name) if isinstance(name, str) else None
        if operator is None or operator.kind != kind:
            message = f"prefill_op is {name!r}, which is no operator for {kind}"
            effect = "loading fails: it unloads the prefill operator unconditionally"
        else:
            on = "cpu" if entry.kwargs.get("prefill_device", "cuda") == "cpu" else "gpu"
            if on in operator.device_kinds:
                continue
            message = f"prefill_op {name} does not run on its prefill_device"
            effect = _DEVICE_REFUSED
        subject.report_at(
            module,
            entry,
            ERROR,
            "prefill-operator",
            message,
            effect=effect,
            remedy=f"write prefill_op: {default}",
        )


def _check_machine(subject: Subject) -> None:
    """Devices that exist, and what they can run."""
    machine = subject.machine
    if machine is None:
        return
    exists = ", ".join(machine.by_name)
    for module, entry in subject.entries():
        matters = bool(module.tensors) or module.role is Role.ATTENTION
        matters = matters and is_device(entry.device)
        device = machine.by_name.get(entry.device)
        if device is None and matters:
            subject.report_at(
                module,
                entry,
                ERROR,
                "no-such-device",
                f"modules are on {entry.device}, but {machine.name} has {exists}",
                effect="loading stops: invalid device ordinal",
                remedy="" if entry.rule is not None else "no rule matches them",
            )
        elif device is not None:
            _check_capability(subject, module, entry, device)
    for device_name in subject.assignment.transfer_map.values():
        known = isinstance(device_name, str) and device_name not in ("cuda", *machine.by_name)
        model = subject.assignment.modules.get("model")
        if known and model is not None:
            subject.report(
                ERROR,
                "no-such-device",
                f"the transfer_map names {device_name}, but {machine.name} has {exists}",
                rules=[model.rule],
                effect="the first prompt stops: invalid device ordinal",
            )


def _check_capability(
    subject: Subject, module: Module, entry: ModuleAssignment, device: Device
) -> None:
    operator = OPERATORS.get(entry.operator or "")
    least = operator.compute_capability if operator else None
    found = device.compute_capability
    if operator is not None and least is not None and found is not None and found < least:
        subject.report_at(
            module,
            entry,
            ERROR,
            "compute-capability",
            f"{operator.name} needs compute capability {least[0]}.{least[1]}, "
            f"but {device.name} ({device.model}) has {found[0]}.{found[1]}",
            effect="its kernel does not exist for that GPU: the first prompt fails",
            remedy="use KLinearTorch or KExpertsTorch there",
        )


CHECKS = (_check_operators, _check_prefill, _check_machine)
