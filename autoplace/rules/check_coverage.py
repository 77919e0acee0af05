"""Checks: whether each module is reached, by a rule and a class that are meant for it."""

from autoplace.architectures.spec import Module, Role
from autoplace.placement.assignment import ModuleAssignment
from autoplace.rules.families import injections
from autoplace.rules.finding import Severity
from autoplace.rules.subject import Subject, short_name
from autoplace.rules.vocabulary import LINEAR_ROLES, wrapped_kind

ERROR, WARNING = Severity.ERROR, Severity.WARNING
_LINEARS = (*LINEAR_ROLES, Role.KV_B, Role.ROUTER, Role.SHARED_GATE, Role.LM_HEAD)


def _check_coverage(subject: Subject) -> None:
    """Modules that the walk never reaches, or that no rule matches although they need one."""
    for module in subject.spec.modules:
        if module.path not in subject.assignment.modules and module.role is not Role.CONTAINER:
            subject.report(
                ERROR,
                "not-visited",
                f"{short_name(module)} is never visited: a rule above it says 'recursive: false'",
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


def _check_experts(subject: Subject) -> None:
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


def _check_kv_b(subject: Subject) -> None:
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


def _check_embedding(subject: Subject) -> None:
    for module, entry in subject.entries():
        if module.role is Role.EMBEDDING and entry.device != "cpu":
            subject.report(
                ERROR,
                "embedding-on-gpu",
                f"{module.path} is on {entry.device}, but tokens are embedded on the cpu",
                rule=entry.rule,
                remedy="give it generate_device: cpu",
            )


def _check_classes(subject: Subject) -> None:
    """The right class for each role: wrappers on what they wrap, family classes where needed."""
    wanted = injections(subject.spec, engine=subject.assignment.engine)
    for module, entry in subject.entries():
        kind = wrapped_kind(entry.class_name)
        if kind == "linear" and module.role not in _LINEARS:
            _wrong_class(subject, module, entry, "a linear")
        elif kind == "experts" and module.role is not Role.EXPERTS:
            _wrong_class(subject, module, entry, "a layer's routed experts")
        elif kind is None and entry.class_name and module.role in (*LINEAR_ROLES, Role.EXPERTS):
            _wrong_class(subject, module, entry, "another kind of module")
        injection = wanted.get(module.role)
        if injection is not None and injection.covers(module) and not entry.class_name:
            _plain(subject, module, entry, injection.replace_class)


def _plain(subject: Subject, module: Module, entry: ModuleAssignment, replace_class: str) -> None:
    """KTransformers' families need their own classes: rotary buffers are empty without."""
    if subject.is_ktransformers:
        subject.report(
            ERROR if module.role is Role.ROTARY else WARNING,
            f"{module.role.value}-plain",
            f"{short_name(module)} is not replaced by {replace_class.rpartition('.')[2]}",
            layer=module.layer,
            rule=entry.rule,
        )


def _wrong_class(subject: Subject, module: Module, entry: ModuleAssignment, what: str) -> None:
    assert entry.class_name is not None
    subject.report(
        ERROR,
        "wrong-class",
        f"{short_name(module)} is replaced by {entry.class_name.rpartition('.')[2]}, "
        f"which is for {what}",
        layer=module.layer,
        rule=entry.rule,
    )


def _check_dead_rules(subject: Subject) -> None:
    used = {entry.rule for entry in subject.assignment.modules.values()}
    for index in range(len(subject.rules)):
        if index not in used:
            subject.report(
                WARNING, "dead-rule", "the rule is the first match of no module", rule=index
            )


CHECKS = (
    _check_coverage,
    _check_experts,
    _check_kv_b,
    _check_embedding,
    _check_classes,
    _check_dead_rules,
)
