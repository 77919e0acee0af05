"""What the checks look at, and where they report to."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.rules.finding import Finding, Severity, merge, readable
from autoplace.rules.rule import Rule
from autoplace.rules.vocabulary import LINEAR_ROLES

ON_LAYER = (Role.ATTENTION, Role.NORM, Role.KV_B, Role.ROUTER, Role.ROTARY, Role.SHARED_GATE)
"""Modules that compute where the activations are."""

_DEVICE = re.compile(r"cpu|cuda:\d{1,3}")
_DECIDES = 1000
"""Votes of an attention that the activations do come to: what else is elsewhere has strayed."""


@dataclass
class Subject:
    """What is checked, and what was found so far."""

    assignment: Assignment
    spec: ModelSpec
    machine: Machine | None
    rules: tuple[Rule, ...]
    text_findings: Sequence[Finding] = ()
    """What reading the text found: causes of which the checks see the consequences."""
    broken_patterns: dict[int, str] = field(default_factory=dict)
    """Number of a rule → its pattern, which does not compile: the walk leaves the rule out."""
    explained: set[int] = field(default_factory=set)
    """Layers whose lack of rules a finding has explained already."""
    explained_roles: set[Role] = field(default_factory=set)
    """Roles whose lack of a class a finding has explained already."""
    explained_rules: set[int] = field(default_factory=set)
    """Indices of rules that match nothing for a reason that a finding has given already."""
    _found: list[Finding] = field(default_factory=list)

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
        layers: Iterable[int] = (),
        rules: Iterable[int | None] = (),
        effect: str = "",
        remedy: str = "",
    ) -> None:
        """Note a finding of rules by their indices; those that differ only in place become one."""
        indices = sorted({rule for rule in rules if rule is not None})
        numbers = tuple(self.number(index) for index in indices)
        lines = tuple(line for index in indices if (line := self._line(index)))
        self._found.append(
            Finding(
                severity,
                code,
                readable(message),
                rule=numbers[0] if numbers else None,
                line=lines[0] if lines else None,
                layers=tuple(sorted(set(layers))),
                effect=effect,
                remedy=remedy,
                rules=numbers if len(numbers) > 1 else (),
                lines=lines if len(lines) > 1 else (),
            )
        )

    def report_at(
        self,
        module: Module,
        entry: ModuleAssignment,
        severity: Severity,
        code: str,
        message: str,
        *,
        effect: str = "",
        remedy: str = "",
    ) -> None:
        """Note a finding about one module; those of other modules that read alike join it."""
        self.report(
            severity,
            code,
            message,
            layers=layers_of([module]),
            rules=[entry.rule],
            effect=effect,
            remedy=remedy,
        )

    def findings(self) -> list[Finding]:
        return merge(self._found)

    def number(self, index: int) -> int:
        """A rule's number in the file, which counts rules that could not be read too."""
        known = index < len(self.rules) and self.rules[index].number
        return known or index + 1

    def _line(self, index: int) -> int:
        return self.rules[index].line if index < len(self.rules) else 0

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
        model = self.assignment.modules.get("model")
        moves = self.assignment.transfer_map if model and model.class_name else {}
        device = self.start_device
        devices = []
        for index in range(self.spec.geometry.num_layers):
            target = moves.get(index) if type(moves.get(index)) is str else None
            device = str(target) if target is not None else device
            devices.append(device)
        return tuple(devices)

    @cached_property
    def homes(self) -> tuple[str, ...]:
        """Device that each layer is meant to be on: where most of its modules are put by rules.

        A layer that no rule names is taken to be where the activations are.
        """
        votes: list[Counter[str]] = [Counter() for _ in range(self.spec.geometry.num_layers)]
        for module, entry in self.entries():
            if module.layer is None or entry.rule is None or not is_device(entry.device):
                continue
            follows = self.is_ktransformers and entry.device != "cpu"
            if module.role in ON_LAYER or (follows and module.role in LINEAR_ROLES):
                votes[module.layer][entry.device] += 1
            if module.role is Role.ATTENTION and entry.device == self.stream[module.layer]:
                votes[module.layer][entry.device] += _DECIDES
        return tuple(_winner(vote, self.stream[layer]) for layer, vote in enumerate(votes))


def is_device(name: str) -> bool:
    """Whether it is spelt as a device; what is not has a finding of its own."""
    return _DEVICE.fullmatch(name) is not None


def _winner(votes: Counter[str], stream: str) -> str:
    most = max(votes.values(), default=0)
    return stream if votes[stream] == most else votes.most_common(1)[0][0]


def homes_of(assignment: Assignment, spec: ModelSpec) -> tuple[str, ...]:
    """Device that each layer is meant to be on."""
    return Subject(assignment, spec, None, ()).homes


def short_name(module: Module) -> str:
    """A module's name without its layer, so that findings of many layers read alike."""
    if module.layer is None:
        return module.path
    return module.path.removeprefix(f"model.layers.{module.layer}.")


def list_names(names: Iterable[str], shown: int = 4) -> str:
    """`a is`, `a, b and 4 more are`."""
    names = list(names)
    if len(names) == 1:
        return f"{names[0]} is"
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more} are"


def layers_of(modules: Sequence[Module]) -> set[int]:
    return {module.layer for module in modules if module.layer is not None}
