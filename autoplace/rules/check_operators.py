"""Checks: whether the operators exist, run on their devices, and load in the engine's version."""

from autoplace.architectures.spec import Module, Role
from autoplace.catalog.engines import ENGINES
from autoplace.catalog.operators import OPERATORS
from autoplace.errors import did_you_mean
from autoplace.hardware.machine import Device
from autoplace.placement.assignment import ModuleAssignment
from autoplace.rules.finding import Severity
from autoplace.rules.subject import Subject
from autoplace.rules.vocabulary import option_problems, wrapped_kind

ERROR, ADVICE = Severity.ERROR, Severity.ADVICE


def _check_operators(subject: Subject) -> None:
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


def _check_prefill(subject: Subject) -> None:
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


def _check_engine(subject: Subject) -> None:
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


def _check_machine(subject: Subject) -> None:
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
    subject: Subject, module: Module, entry: ModuleAssignment, device: Device
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


CHECKS = (_check_operators, _check_prefill, _check_engine, _check_machine)
