"""Checks: whether each module is reached, by a rule and a class that are meant for it."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autoplace.architectures.spec import Module, Role
from autoplace.placement.assignment import ModuleAssignment
from autoplace.rules.families import injections
from autoplace.rules.finding import Severity, layers_text
from autoplace.rules.number_range import meant_numbers, number_range_remedy
from autoplace.rules.subject import Subject, list_names, short_name
from autoplace.rules.vocabulary import LINEAR_ROLES

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE
_WORDS = {
    Role.ATTENTION: "attention",
    Role.ROTARY: "rotary embedding",
    Role.ATTENTION_LINEAR: "attention linears",
    Role.MLP: "MoE block",
    Role.DENSE_LINEAR: "dense MLP's linears",
    Role.SHARED_LINEAR: "shared experts' linears",
    Role.EXPERTS: "routed experts",
    Role.ROUTER: "router",
    Role.NORM: "norms",
}
_EFFECTS = {
    Role.ATTENTION: "the cache has the layout of the replaced attention, which the model's own "
    "cannot write to: the first prompt fails",
    Role.EXPERTS: "loading stops: the walk goes into every single expert, for which a GGUF has "
    "no tensors",
    Role.ROTARY: "the rotary embedding's buffers stay empty, so the output is noise",
    Role.ATTENTION_LINEAR: "they load as plain bf16, four times the bytes of Marlin",
    Role.MLP: "the model's own MoE block takes experts by their number, which their wrapper has "
    "not: the first prompt fails",
    Role.NORM: "the server calls them with the size of the batch, which plain ones do not take",
}
_FATAL = (Role.ATTENTION, Role.MLP, Role.EXPERTS, Role.ROTARY, Role.NORM)


@dataclass
class Gap:
    """Layers whose modules of some roles lack what they need, with one cause."""

    layers: set[int]
    roles: list[Role] = field(default_factory=list)
    rules: set[int | None] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)

    @property
    def names(self) -> str:
        return ", ".join(_WORDS[role] for role in _WORDS if role in self.roles)

    @property
    def severity(self) -> Severity:
        return ERROR if any(role in _FATAL for role in self.roles) else WARNING

    @property
    def effect(self) -> str:
        return ", and ".join(_EFFECTS[role] for role in _EFFECTS if role in self.roles)


def _check_number_ranges(subject: Subject) -> None:
    """`[30-59]`: valid as a pattern, but about single characters."""
    ranged = {
        index: rule.name
        for index, rule in enumerate(subject.rules)
        if rule.name is not None and meant_numbers(rule.name)
    }
    texts = [*ranged.values(), *subject.broken_patterns.values()]
    meant = {number for text in texts for number in meant_numbers(text)}
    lacking = _lacking(subject)
    missed = {layer for layers in lacking.values() for layer in layers} & meant
    subject.explained |= missed
    if not ranged:
        return
    used = {entry.rule for entry in subject.assignment.modules.values()}
    dead = [index for index in ranged if index not in used]
    subject.explained_rules |= set(dead)
    first = next(iter(ranged.values()))
    unmatched = f": {layers_text(sorted(missed))} unmatched" if missed else ""
    rules = f", dead rules: {', '.join(str(subject.number(i)) for i in dead)}" if dead else ""
    subject.report(
        ERROR,
        "number-range",
        f"a number range in brackets cannot match two-digit numbers{unmatched}{rules}",
        layers=missed,
        rules=ranged,
        effect=Gap(missed, [role for role, layers in lacking.items() if layers & missed]).effect,
        remedy=number_range_remedy(first) or "",
    )


def _lacking(subject: Subject) -> Mapping[Role, set[int]]:
    """Role → layers in which no rule matches a module of it that needs one."""
    lacking: dict[Role, set[int]] = defaultdict(set)
    for module, entry in needing(subject):
        if entry.rule is None and module.layer is not None:
            lacking[module.role].add(module.layer)
    return lacking


def needing(subject: Subject) -> Iterator[tuple[Module, ModuleAssignment]]:
    """Modules of layers that are to be replaced."""
    wanted = injections(subject.spec, engine=subject.assignment.engine)
    for module, entry in subject.entries():
        injection = wanted.get(module.role) if subject.is_ktransformers else None
        needs = module.role in (*LINEAR_ROLES, Role.EXPERTS)
        if module.layer is not None and (needs or (injection and injection.covers(module))):
            yield module, entry


def _check_coverage(subject: Subject) -> None:
    """Modules that the walk never reaches, or that no rule matches although they need one."""
    hidden = [
        module
        for module in subject.spec.modules
        if module.path not in subject.assignment.modules and module.role is not Role.CONTAINER
    ]
    if hidden:
        names = dict.fromkeys(short_name(module) for module in hidden)
        subject.report(
            ERROR,
            "not-visited",
            f"{list_names(names)} never visited: a rule above says 'recursive: false'",
            layers=[module.layer for module in hidden if module.layer is not None],
            rules=_stopping(subject, hidden),
            effect="they are in no device map, and load to the default GPU as they are",
            remedy="leave recursive: false to mlp.experts",
        )
    for gap in _gaps(subject):
        apart = sorted({subject.homes[layer] for layer in gap.layers} - gap.devices)
        elsewhere = f"the activations are on {' and '.join(apart)}" if apart else ""
        subject.explained |= gap.layers
        subject.report(
            ERROR if apart else gap.severity,
            "unmatched",
            f"no rule matches the {gap.names}, so they stay plain on "
            f"{' and '.join(sorted(gap.devices))}{_digits(subject, gap)}",
            layers=gap.layers,
            rules=_meant_rules(subject, gap),
            effect="; ".join(part for part in (gap.effect, elsewhere) if part),
            remedy="give the patterns these layers too",
        )


def _stopping(subject: Subject, hidden: list[Module]) -> set[int | None]:
    paths = {hidden[0].path.rsplit(".", count)[0] for count in range(1, 6)}
    found = (subject.assignment.modules.get(path) for path in paths)
    return {
        entry.rule
        for entry in found
        if entry is not None
        and entry.rule is not None
        and entry.rule < len(subject.rules)
        and not subject.rules[entry.rule].recursive
    }


def _gaps(subject: Subject) -> list[Gap]:
    """Unmatched roles, those of the same layers together; what has been explained left out."""
    gaps: list[Gap] = []
    lacking = {role: layers - subject.explained for role, layers in _lacking(subject).items()}
    devices = {(module.role, module.layer): entry.device for module, entry in needing(subject)}
    for role, layers in sorted(lacking.items(), key=lambda item: -len(item[1])):
        if not layers:
            continue
        gap = next((gap for gap in gaps if gap.layers >= layers), None)
        if gap is None:
            gap = Gap(set(layers))
            gaps.append(gap)
        gap.roles.append(role)
        gap.devices |= {devices[role, layer] for layer in layers}
    return gaps


def _meant_rules(subject: Subject, gap: Gap) -> set[int | None]:
    """Rules that match such modules in other layers: their patterns are too narrow."""
    return {
        entry.rule
        for module, entry in needing(subject)
        if module.role in gap.roles and module.layer not in gap.layers and entry.class_name
    }


def _digits(subject: Subject, gap: Gap) -> str:
    """The commonest reason: patterns for layer numbers of another length."""
    others = set(range(subject.spec.geometry.num_layers)) - gap.layers
    if others and max(gap.layers) < 10 <= min(others):
        return "; the patterns match two-digit layer numbers only"
    if others and min(gap.layers) >= 10 > max(others):
        return "; the patterns match one-digit layer numbers only"
    return ""


_LAYER_NUMBERS = re.compile(r"layers\\?\.(?:\((?:\?:)?)?(\d+(?:\|\d+)*)\)?(.*)", re.DOTALL)
"""Plain numbers after `layers.`, and what follows them."""


def _check_open_ends(subject: Subject) -> None:
    """`layers.1` without a dot behind it also finds layers 10 to 19."""
    matched: dict[int | None, set[int]] = defaultdict(set)
    for module, entry in subject.entries():
        if module.layer is not None:
            matched[entry.rule].add(module.layer)
    for index, rule in enumerate(subject.rules):
        found = _LAYER_NUMBERS.search(rule.name or "")
        if found is None or re.match(r"\\?\.|\$|\\b|\[", found[2]) or "layers" in found[2]:
            continue
        meant = {int(number) for number in found[1].split("|")}
        extra = sorted(matched[index] - meant)
        if extra and all(str(layer).startswith(tuple(map(str, meant))) for layer in extra):
            subject.report(
                WARNING,
                "open-ended-pattern",
                f"the layer number in the pattern has no end, so {layers_text(extra)} match too",
                layers=extra,
                rules=[index],
                effect="the first match wins, so later rules never get these layers",
                remedy=r"write \. behind the number",
            )


def _check_plain(subject: Subject) -> None:
    """Modules that only a `default` rule matches, although they need a class."""
    plain: dict[Role, set[int]] = defaultdict(set)
    rules: dict[Role, set[int | None]] = defaultdict(set)
    everywhere: dict[Role, set[int]] = defaultdict(set)
    for module, entry in needing(subject):
        assert module.layer is not None
        everywhere[module.role].add(module.layer)
        if entry.rule is not None and entry.class_name is None:
            plain[module.role].add(module.layer)
            rules[module.role].add(entry.rule)
    for role, layers in plain.items():
        if role in subject.explained_roles:
            continue
        gap = Gap(layers, [role], rules[role])
        linears = role in LINEAR_ROLES
        subject.report(
            ADVICE if linears and layers == everywhere[role] else gap.severity,
            "experts-plain" if role is Role.EXPERTS else f"{role.value.replace('_', '-')}-plain",
            f"only a 'default' rule matches the {gap.names}, so they stay plain",
            layers=layers,
            rules=rules[role],
            effect=gap.effect,
            remedy=_replacement(subject, role),
        )


def _replacement(subject: Subject, role: Role) -> str:
    if role is Role.EXPERTS:
        return "replace mlp.experts by KTransformersExperts in an earlier rule"
    if role in LINEAR_ROLES:
        return "replace them by KTransformersLinear in an earlier rule"
    wanted = injections(subject.spec, engine=subject.assignment.engine)
    return f"replace it by {wanted[role].replace_class.rpartition('.')[2]} in an earlier rule"


CHECKS = (
    _check_number_ranges,
    _check_coverage,
    _check_open_ends,
    _check_plain,
)
