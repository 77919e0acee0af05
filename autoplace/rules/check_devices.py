"""Checks: whether the modules are where the activations are, and go back there."""

from autoplace.architectures.spec import Module, Role
from autoplace.placement.assignment import ModuleAssignment, Value
from autoplace.rules.finding import Severity
from autoplace.rules.subject import Subject, list_names, short_name
from autoplace.rules.vocabulary import LINEAR_ROLES

ERROR, WARNING = Severity.ERROR, Severity.WARNING
_ON_LAYER = (Role.ATTENTION, Role.NORM, Role.KV_B, Role.ROUTER, Role.ROTARY, Role.SHARED_GATE)
"""Modules that compute where the activations are."""


def _check_transfer_map(subject: Subject) -> None:
    model = subject.assignment.modules.get("model")
    rule = model.rule if model else None
    for key, device in subject.assignment.transfer_map.items():
        _check_transfer(subject, key, device, rule)
    if model is not None and model.class_name is not None:
        threshold = model.kwargs.get("per_layer_prefill_intput_threshold", 30000)
        if threshold:
            subject.report(
                WARNING,
                "layerwise-prefill",
                f"per_layer_prefill_intput_threshold is {threshold!r}: prompts beyond it are "
                "prefilled layer by layer, which breaks with several GPUs",
                rule=rule,
                remedy="write per_layer_prefill_intput_threshold: 0",
            )


def _check_transfer(subject: Subject, key: Value, device: Value, rule: int | None) -> None:
    num_layers = subject.spec.geometry.num_layers
    if type(key) is not int:
        message = f"the transfer_map's key {key!r} is no integer, so the activations never move"
        remedy = f"write {key}: without quotes" if str(key).isdigit() else ""
        subject.report(ERROR, "transfer-key", message, rule=rule, remedy=remedy)
    elif not 0 <= key < num_layers:
        message = f"the transfer_map names layer {key}, but the layers are 0 to {num_layers - 1}"
        subject.report(ERROR, "transfer-key", message, rule=rule)
    if not isinstance(device, str) or device == "cuda":
        message = f"the transfer_map's device {device!r} is none"
        subject.report(ERROR, "transfer-device", message, rule=rule, remedy="write cpu or cuda:N")


def _check_devices(subject: Subject) -> None:
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
            names.setdefault(short_name(module), set()).add(module.layer)
        if entry.operator in ("KExpertsCPU", "KLinearCPUInfer"):
            _check_out_device(subject, module, entry, stream)
    for (rule, device, stream), names in stray.items():
        for layer in sorted(set().union(*names.values())):
            subject.report(
                ERROR,
                "wrong-device",
                f"{list_names(names)} on {device}, but the activations are on {stream}",
                layer=layer,
                rule=rule,
                remedy="" if rule is not None else "no rule matches them",
            )
    _check_end_devices(subject)


def _check_out_device(
    subject: Subject, module: Module, entry: ModuleAssignment, stream: str
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
            f"{short_name(module)} returns to {device}{missing}, "
            f"but the activations are on {stream}",
            layer=module.layer,
            rule=entry.rule,
            remedy=f"write out_device: {stream}",
        )


def _check_end_devices(subject: Subject) -> None:
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


CHECKS = (_check_transfer_map, _check_devices)
