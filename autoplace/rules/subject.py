"""What the checks look at, and where they report to."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.rules.finding import Finding, Severity
from autoplace.rules.rule import Rule


@dataclass
class Subject:
    """What is checked, and what was found so far."""

    assignment: Assignment
    spec: ModelSpec
    machine: Machine | None
    rules: tuple[Rule, ...]
    _found: dict[tuple[Severity, str, str, str, int | None], set[int]] = field(default_factory=dict)

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
        layer: int | None = None,
        rule: int | None = None,
        remedy: str = "",
    ) -> None:
        """Note a finding; those that differ only in their layer become one."""
        layers = self._found.setdefault((severity, code, message, remedy, rule), set())
        if layer is not None:
            layers.add(layer)

    def findings(self) -> Iterator[Finding]:
        for (severity, code, message, remedy, rule), layers in self._found.items():
            known = rule is not None and rule < len(self.rules)
            yield Finding(
                severity,
                code,
                message,
                rule=None if rule is None else rule + 1,
                line=(self.rules[rule].line or None) if known and rule is not None else None,
                layers=tuple(sorted(layers)),
                remedy=remedy,
            )

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
        moves = self.assignment.transfer_map
        device = self.start_device
        devices = []
        for index in range(self.spec.geometry.num_layers):
            target = moves.get(index) if type(moves.get(index)) is str else None
            device = str(target) if target is not None else device
            devices.append(device)
        return tuple(devices)


def short_name(module: Module) -> str:
    """A module's name without its layer, so that findings of many layers read alike."""
    if module.layer is None:
        return module.path
    return module.path.removeprefix(f"model.layers.{module.layer}.")


def list_names(names: Iterable[str], shown: int = 3) -> str:
    """`a is`, `a, b and 4 more are`."""
    names = list(names)
    if len(names) == 1:
        return f"{names[0]} is"
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more} are"
