"""Checks: causes of which coverage would see the consequences, rule by rule and role by role."""

import re
from collections import defaultdict

from autoplace.architectures.spec import Role
from autoplace.rules.check_coverage import Gap, needing
from autoplace.rules.families import injections
from autoplace.rules.finding import Severity, ranges
from autoplace.rules.match import Matcher
from autoplace.rules.subject import Subject
from autoplace.rules.vocabulary import is_instance

ERROR = Severity.ERROR


def _check_early_defaults(subject: Subject) -> None:
    """A 'default' rule in front of those that replace: what it takes stays plain."""
    matcher = Matcher.of(subject.rules)
    used = {entry.rule for entry in subject.assignment.modules.values()}
    taken: dict[int, set[Role]] = defaultdict(set)
    shadowed: dict[int, set[int]] = defaultdict(set)
    layers: dict[int, set[int]] = defaultdict(set)
    for module, entry in needing(subject):
        if entry.rule is None or entry.class_name is not None:
            continue
        later = [
            index
            for index in range(entry.rule + 1, len(subject.rules))
            if index not in used
            and subject.rules[index].replace_class != "default"
            and matcher.matches(index, module.path, module.class_name)
        ]
        if later and module.layer is not None:
            taken[entry.rule].add(module.role)
            shadowed[entry.rule].update(later)
            layers[entry.rule].add(module.layer)
    for first, roles in taken.items():
        gap = Gap(layers[first], list(roles))
        numbers = ranges(subject.number(index) for index in shadowed[first])
        subject.explained_rules |= shadowed[first]
        subject.explained_roles |= roles
        subject.report(
            ERROR,
            "default-first",
            f"a 'default' rule takes the {gap.names} before rules {numbers}, which would replace "
            "them, are asked",
            layers=gap.layers,
            rules=[first],
            effect=gap.effect,
            remedy="move it behind them: the first match wins",
        )


_OF_A_FAMILY = re.compile(
    r"ktransformers\.models\.modeling_\w+\.(?:DeepseekV[23]|Qwen[23]Moe|Mixtral|Llama|Glm4Moe)"
    r"(?:Yarn|LinearScaling|DynamicNTKScaling)?(\w+)"
)
"""A class of a model family; the group is what families have in common."""


def _check_foreign_matches(subject: Subject) -> None:
    """Rules written for another family: their classes are not there, though like ones are."""
    used = {entry.rule for entry in subject.assignment.modules.values()}
    wanted = injections(subject.spec, engine=subject.assignment.engine)
    own = {
        _common(injection.match_class): (role, injection.match_class)
        for role, injection in wanted.items()
        if injection.match_class is not None
    }
    foreign = {
        index: rule.match_class
        for index, rule in enumerate(subject.rules)
        if index not in used
        and rule.match_class
        and _common(rule.match_class) in own
        and not any(is_instance(m.class_name, rule.match_class) for m in subject.spec.modules)
    }
    if not foreign or not subject.is_ktransformers:
        return
    meant = dict.fromkeys(own[_common(name)] for name in foreign.values())
    lacking = Gap(set(), [role for role, _ in meant])
    layers = [
        module.layer
        for module, entry in needing(subject)
        if module.role in lacking.roles and entry.class_name is None and module.layer is not None
    ]
    subject.explained_rules |= set(foreign)
    subject.explained_roles |= set(lacking.roles)
    theirs = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in foreign.values()))
    subject.report(
        ERROR,
        "foreign-match",
        f"the rules match {theirs}, which {subject.spec.name} does not have: they match nothing",
        layers=layers,
        rules=foreign,
        effect=lacking.effect or f"the {lacking.names} stay plain",
        remedy=f"match {' and '.join(name for _, name in meant)}",
    )


def _common(class_name: str) -> str:
    """`MoE` of `DeepseekV3MoE`, `RotaryEmbedding` of any rotary; else the whole name."""
    found = _OF_A_FAMILY.fullmatch(class_name)
    return found[1] if found else class_name


CHECKS = (_check_foreign_matches, _check_early_defaults)
