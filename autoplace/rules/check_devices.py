"""Checks: whether the modules are where the activations are, and go back there."""

import difflib
from collections import defaultdict
from collections.abc import Mapping

from autoplace.architectures.spec import Module, Role
from autoplace.placement.assignment import ModuleAssignment, Value
from autoplace.rules.finding import Severity
from autoplace.rules.subject import ON_LAYER, Subject, is_device, layers_of, list_names, short_name
from autoplace.rules.vocabulary import LINEAR_ROLES

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE
_APART = "the first prompt fails with tensors on different devices"
_DEVICE_KEYS = ("generate_device", "prefill_device")


def _check_strays(subject: Subject) -> None:
    """Whatever computes with the activations must be where its layer is."""
    strays: dict[tuple[int | None, str, str], list[Module]] = defaultdict(list)
    for module, entry in subject.entries():
        home = _expected(subject, module, entry)
        if home is not None and entry.device != home and is_device(entry.device):
            strays[entry.rule, entry.device, home].append(module)
    for (rule, device, home), modules in strays.items():
        names = dict.fromkeys(short_name(module) for module in modules)
        ends = [module.path for module in modules if module.layer is None]
        shown = [*ends, *(name for name in names if name not in ends)]
        subject.report(
            ERROR,
            "wrong-device",
            f"{list_names(shown, 6)} on {device}, but the activations are on {home}",
            layers=layers_of(modules),
            rules=[rule],
            effect=_APART,
            remedy=f"give them generate_device: {home}"
            + ("" if rule is not None else "; no rule matches them"),
        )


def _expected(subject: Subject, module: Module, entry: ModuleAssignment) -> str | None:
    """Where a module has to be; None where it may be anywhere, or a finding covers it already."""
    if module.layer is None:
        plain_head = module.role is Role.LM_HEAD and entry.operator is None
        return subject.homes[-1] if module.role is Role.NORM or plain_head else None
    if module.layer in subject.explained and entry.rule is None:
        return None
    if module.role in ON_LAYER and entry.operator is None:
        return subject.homes[module.layer]
    is_linear = module.role in LINEAR_ROLES
    if is_linear and (subject.is_ktransformers or entry.operator is None):
        return None if entry.operator == "KLinearCPUInfer" else subject.homes[module.layer]
    return None


def _check_out_devices(subject: Subject) -> None:
    for module, entry in subject.entries():
        if entry.operator not in ("KExpertsCPU", "KLinearCPUInfer") or module.layer is None:
            continue
        home = subject.homes[module.layer]
        given = entry.kwargs.get("out_device", "cuda")
        device = "cuda:0" if given == "cuda" else given
        misspelt = isinstance(device, str) and not is_device(device)
        if device != home and not misspelt:
            missing = "" if "out_device" in entry.kwargs else ", where out_device is missing"
            what = "experts" if module.role is Role.EXPERTS else "linears on the cpu"
            subject.report_at(
                module,
                entry,
                ERROR,
                "out-device",
                f"the {what} return their result to {device}{missing}, "
                f"but the activations are on {home}",
                effect=_APART,
                remedy=f"write out_device: {home}",
            )


def _check_given_devices(subject: Subject) -> None:
    """Devices are never inherited: what a rule does not say is a default, or a KeyError."""
    for module, entry in subject.entries():
        if entry.rule is None or not subject.is_ktransformers:
            continue
        matters = bool(module.tensors) or module.role is Role.ATTENTION
        missing = [key for key in _DEVICE_KEYS if key not in entry.kwargs]
        missing = [key for key in missing if not _is_misspelt(key, entry.kwargs)]
        if entry.class_name is None and matters and missing:
            _report_missing(subject, module, entry, missing, "KeyError 'generate_device'")
        elif module.role is Role.ATTENTION and "generate_device" in missing:
            _report_missing(subject, module, entry, missing, "KeyError for the KV cache's device")
        elif entry.class_name is not None and module.role is not Role.MODEL and missing:
            _report_missing(subject, module, entry, missing, "")


def _is_misspelt(key: str, kwargs: Mapping[str, Value]) -> bool:
    """Whether it is there under a name that has a finding of its own."""
    return bool(difflib.get_close_matches(key, set(kwargs) - set(_DEVICE_KEYS), n=1, cutoff=0.8))


def _report_missing(
    subject: Subject, module: Module, entry: ModuleAssignment, missing: list[str], error: str
) -> None:
    fatal = bool(error) and "generate_device" in missing
    subject.report_at(
        module,
        entry,
        ERROR if fatal else WARNING,
        "no-device",
        f"the rule gives its modules no {' and no '.join(missing)}",
        effect=f"loading stops with {error}"
        if fatal
        else "the default is plain cuda, the first GPU",
        remedy=f"write {' and '.join(missing)}: devices are not inherited",
    )


def _check_bare_cuda(subject: Subject) -> None:
    for index, rule in enumerate(subject.rules):
        bare = [key for key in (*_DEVICE_KEYS, "out_device") if rule.kwargs.get(key) == "cuda"]
        if bare and len(set(subject.homes)) > 1:
            subject.report(
                ADVICE,
                "bare-cuda",
                "the device is plain 'cuda'",
                rules=[index],
                effect="it is whichever GPU is current, which the transfer map changes",
                remedy="write cuda:0",
            )


CHECKS = (_check_strays, _check_out_devices, _check_given_devices, _check_bare_cuda)
