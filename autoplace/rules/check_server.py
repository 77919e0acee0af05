"""Checks: classes of KTransformers' server where they belong, and nothing plain where it runs.

The server (balance_serve, since 0.2.4) calls linears, norms, MoE blocks and experts with the size
of the batch; local_chat calls them without. Each wants its own classes (operators/*.py of 0.3).
"""

from collections import defaultdict

from autoplace.architectures.spec import Module, Role
from autoplace.catalog.classes import SERVER_CLASSES
from autoplace.placement.assignment import ModuleAssignment
from autoplace.rules.families import experts_class, is_served
from autoplace.rules.finding import Severity
from autoplace.rules.subject import Subject, layers_of, list_names, short_name
from autoplace.rules.vocabulary import LINEAR_ROLES, wrapped_kind

ERROR = Severity.ERROR
_BATCH_REFUSED = "the server calls it with the size of the batch: TypeError at the first request"
_CALLED_WITH_BATCH = (*LINEAR_ROLES, Role.ROUTER, Role.LM_HEAD)


def _served(subject: Subject) -> bool:
    return is_served(subject.spec, engine=subject.assignment.engine)


def _check_server_classes(subject: Subject) -> None:
    """In local_chat: one finding for all of them, since the whole file is of another kind."""
    if _served(subject):
        return
    found = [
        (module, entry) for module, entry in subject.entries() if entry.class_name in SERVER_CLASSES
    ]
    if not found:
        return
    names = sorted({(entry.class_name or "").rpartition(".")[2] for _, entry in found})
    old = subject.assignment.engine == "ktransformers-0.2.1"
    subject.report(
        ERROR,
        "server-class",
        f"{list_names(names)} for the server (balance_serve), which runs on one GPU",
        layers=layers_of([module for module, _ in found]),
        rules=[entry.rule for _, entry in found],
        effect="this version has no such class: injection stops with AttributeError"
        if old
        else "local_chat calls it without the size of the batch: the first prompt fails with "
        "TypeError",
        remedy="start from the rule file without -serve in its name, or launch the server",
    )


def _check_served(subject: Subject) -> None:
    """In the server: what it calls with the size of the batch must be able to take it."""
    if not _served(subject):
        return
    plain: dict[str, list[tuple[Module, ModuleAssignment]]] = defaultdict(list)
    for module, entry in subject.entries():
        if module.role is Role.EXPERTS:
            _check_experts(subject, module, entry)
        elif _is_plain(module, entry):
            plain[short_name(module)].append((module, entry))
    for name, found in plain.items():
        is_norm = found[0][0].role is Role.NORM
        subject.report(
            ERROR,
            "plain-in-server",
            f"{name} stays plain",
            layers=layers_of([module for module, _ in found]),
            rules=[entry.rule for _, entry in found],
            effect=_BATCH_REFUSED,
            remedy=f"replace it by {'KQwen3MoeRMSNorm' if is_norm else 'KTransformersLinear'}",
        )
    devices = list(dict.fromkeys(subject.homes))
    if devices != ["cuda:0"]:
        subject.report(
            ERROR,
            "server-split",
            f"the server runs on cuda:0 only, but layers are on {', '.join(devices)}",
            effect="its attention has one workspace, on the first GPU",
            remedy="put all layers on cuda:0",
        )


def _is_plain(module: Module, entry: ModuleAssignment) -> bool:
    """Layers' own norms are among what coverage looks for."""
    if module.role is Role.NORM:
        return module.layer is None and entry.class_name is None
    return module.role in _CALLED_WITH_BATCH and wrapped_kind(entry.class_name) is None


def _check_experts(subject: Subject, module: Module, entry: ModuleAssignment) -> None:
    wanted = experts_class(subject.spec, engine=subject.assignment.engine)
    if wrapped_kind(entry.class_name) != "experts":
        return
    if entry.class_name != wanted:
        subject.report_at(
            module,
            entry,
            ERROR,
            "chat-class",
            f"{(entry.class_name or '').rpartition('.')[2]} is local_chat's, but this family runs "
            "in the server (balance_serve) only",
            effect=_BATCH_REFUSED,
            remedy=f"write {wanted}",
        )
    if entry.operator != "KExpertsCPU":
        subject.report_at(
            module,
            entry,
            ERROR,
            "server-experts",
            f"{entry.operator} does not run in the server (balance_serve)",
            effect="it takes no size of the batch: TypeError at the first request",
            remedy="use KExpertsCPU with generate_device: cpu",
        )


CHECKS = (_check_server_classes, _check_served)
