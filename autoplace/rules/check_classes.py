"""Checks: whether each module is replaced by something that is meant for it."""

from autoplace.architectures.spec import Module, Role
from autoplace.catalog.classes import SERVER_CLASSES
from autoplace.placement.assignment import ModuleAssignment
from autoplace.rules.families import injections, is_served
from autoplace.rules.finding import Severity
from autoplace.rules.subject import Subject, short_name
from autoplace.rules.vocabulary import LINEAR_ROLES, wrapped_kind

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE
_LINEARS = (*LINEAR_ROLES, Role.KV_B, Role.ROUTER, Role.SHARED_GATE, Role.LM_HEAD)


def _check_recursion(subject: Subject) -> None:
    """Below the routed experts nothing may be visited: a GGUF has no tensors for single ones."""
    faults = [f for f in subject.text_findings if f.code == "bad-recursive"]
    known = {number for finding in faults for number in finding.all_rules}
    for module, entry in subject.entries():
        replaced = module.role is Role.EXPERTS and entry.class_name is not None
        if not replaced or f"{module.path}.0" not in subject.assignment.modules:
            continue
        assert entry.rule is not None
        if subject.number(entry.rule) in known:
            continue
        subject.report_at(
            module,
            entry,
            ERROR,
            "experts-recursive",
            "the walk goes on into every single expert of the layer",
            effect="loading stops: a GGUF has no tensors for single experts",
            remedy="write recursive: false, unquoted, beside match and replace",
        )


def _check_kv_b(subject: Subject) -> None:
    for module, entry in subject.entries():
        if module.role is Role.KV_B and entry.class_name is not None:
            subject.report_at(
                module,
                entry,
                ERROR,
                "kv-b-replaced",
                "kv_b_proj must not be replaced (injected)",
                effect="attention reads its plain weight, which is not there then: "
                "the first prompt fails",
                remedy="exclude it, as in (?!self_attn\\.kv_b_proj$)",
            )


def _check_embedding(subject: Subject) -> None:
    for module, entry in subject.entries():
        if module.role is Role.EMBEDDING and entry.device != "cpu":
            subject.report(
                ERROR,
                "embedding-on-gpu",
                f"{module.path} is on {entry.device}, but must be on the cpu, where tokens are "
                "embedded",
                rules=[entry.rule],
                effect="the first prompt fails with tensors on different devices, and "
                f"{2 * subject.spec.tensor_infos(module)[0].n_elements} B of the GPU are lost",
                remedy="match ^model\\.embed_tokens$ first, class default, generate_device: cpu",
            )


def _check_classes(subject: Subject) -> None:
    """The right class for each role: wrappers on what they wrap, family classes where needed."""
    for module, entry in subject.entries():
        kind = wrapped_kind(entry.class_name)
        if kind == "linear" and module.role not in _LINEARS:
            _wrong_class(subject, module, entry, "a linear")
        elif kind == "experts" and module.role is not Role.EXPERTS:
            _wrong_class(subject, module, entry, "a layer's routed experts")
        elif kind is None and entry.class_name and module.role in (*LINEAR_ROLES, Role.EXPERTS):
            _wrong_class(subject, module, entry, "another kind of module")
        elif kind is None and entry.class_name:
            _check_family_class(subject, module, entry)


def _wrong_class(subject: Subject, module: Module, entry: ModuleAssignment, what: str) -> None:
    assert entry.class_name is not None
    subject.report_at(
        module,
        entry,
        ERROR,
        "wrong-class",
        f"{short_name(module) or 'the root'} is replaced by "
        f"{entry.class_name.rpartition('.')[2]}, which is for {what}",
        effect="its constructor fails, or the wrong tensors are loaded",
        remedy="anchor the pattern, or match by class too",
    )


def _in_server(subject: Subject) -> bool:
    return is_served(subject.spec, engine=subject.assignment.engine)


def _check_family_class(subject: Subject, module: Module, entry: ModuleAssignment) -> None:
    """A class of another family or role: KTransformers ships one pair for each family's module."""
    if not subject.is_ktransformers:
        return
    assert entry.class_name is not None
    if entry.class_name in SERVER_CLASSES and not _in_server(subject):
        return
    wanted = injections(subject.spec, engine=subject.assignment.engine).get(module.role)
    name = entry.class_name.rpartition(".")[2]
    if wanted is None or not wanted.covers(module):
        what = "this family has nothing to replace there"
        remedy = "leave it out of the rule"
    elif wanted.replace_class != entry.class_name:
        what = f"this family's is {wanted.replace_class.rpartition('.')[2]}"
        remedy = f"write {wanted.replace_class}"
    else:
        return
    subject.report_at(
        module,
        entry,
        WARNING,
        "foreign-class",
        f"{short_name(module) or 'the root'} is replaced by {name}, but {what}",
        effect="it computes by another model's formulas, or fails when it is made",
        remedy=remedy,
    )


CHECKS = (_check_recursion, _check_kv_b, _check_embedding, _check_classes)
