"""What is wrong with a rule file for a model, an engine and a machine, by simulating its walk.

Every check looks at the assignment, so hand-written, faulty and compiled files are judged alike.
Findings with the same cause are one finding, at all its places.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplace.architectures.spec import ModelSpec
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment
from autoplace.rules import (
    check_causes,
    check_classes,
    check_coverage,
    check_dead,
    check_devices,
    check_operators,
    check_server,
    check_transfer,
    check_version,
)
from autoplace.rules.finding import Finding, Severity, merge, refuse
from autoplace.rules.match import assign
from autoplace.rules.read import RuleFile
from autoplace.rules.rule import Rule
from autoplace.rules.subject import Subject

_CHECKS = (
    *check_causes.CHECKS,
    *check_coverage.CHECKS,
    *check_classes.CHECKS,
    *check_transfer.CHECKS,
    *check_devices.CHECKS,
    *check_operators.CHECKS,
    *check_server.CHECKS,
    *check_version.CHECKS,
    *check_dead.CHECKS,
)


@dataclass(frozen=True)
class Examined:
    """A rule file with its meaning and all that is wrong with it."""

    file: RuleFile
    assignment: Assignment
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Advice is no fault: of experts on GPUs, the launch line takes care."""
        return all(finding.severity is Severity.ADVICE for finding in self.findings)

    @property
    def has_errors(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def examine(
    file: RuleFile, spec: ModelSpec, *, engine: str, machine: Machine | None = None
) -> Examined:
    """What a rule file means, and its findings: of its text and of its meaning, errors first."""
    assignment = assign(file.rules, spec, engine=engine)
    if file.is_unreadable:
        return Examined(file, assignment, tuple(merge(file.findings)))
    subject = Subject(
        assignment, spec, machine, file.rules, merge(file.findings), dict(file.broken_patterns)
    )
    found = _run(subject)
    text = [_with_layers(finding, subject) for finding in subject.text_findings]
    return Examined(file, assignment, _sorted([*text, *found]))


def lint(
    assignment: Assignment,
    spec: ModelSpec,
    *,
    machine: Machine | None = None,
    rules: Sequence[Rule] = (),
) -> tuple[Finding, ...]:
    """All findings, errors first. Without a machine, what depends on one is not checked."""
    return _sorted(_run(Subject(assignment, spec, machine, tuple(rules))))


def refuse_unrunnable(
    assignment: Assignment,
    spec: ModelSpec,
    machine: Machine,
    *,
    rules: Sequence[Rule] = (),
    source: str = "the rules",
) -> None:
    """Raise one `AutoplaceError` naming the first few things that the engine cannot run."""
    refuse(lint(assignment, spec, machine=machine, rules=rules), source=source)


def _run(subject: Subject) -> list[Finding]:
    for check in _CHECKS:
        check(subject)
    return subject.findings()


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    order = list(Severity)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def _with_layers(finding: Finding, subject: Subject) -> Finding:
    """A fault of the text with the layers that its rules touch."""
    numbers = set(finding.all_rules)
    indices = {i for i in range(len(subject.rules)) if subject.number(i) in numbers}
    layers = {
        module.layer
        for module, entry in subject.entries()
        if entry.rule in indices and module.layer is not None
    }
    if finding.code == "bad-pattern":
        layers = subject.explained
    return replace(finding, layers=tuple(sorted(layers)))
