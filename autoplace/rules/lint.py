"""What is wrong with a rule file for a model, an engine and a machine, by simulating its walk.

Every check looks at the assignment, so hand-written, faulty and compiled files are judged alike.
Findings with the same cause are one finding: modules are gathered by check, rule and message.
"""

from collections.abc import Sequence

from autoplace.architectures.spec import ModelSpec
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment
from autoplace.rules import check_coverage, check_devices, check_operators
from autoplace.rules.finding import Finding, Severity, refuse
from autoplace.rules.rule import Rule
from autoplace.rules.subject import Subject

_CHECKS = (*check_coverage.CHECKS, *check_devices.CHECKS, *check_operators.CHECKS)


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


def lint(
    assignment: Assignment,
    spec: ModelSpec,
    *,
    machine: Machine | None = None,
    rules: Sequence[Rule] = (),
) -> tuple[Finding, ...]:
    """All findings, errors first. Without a machine, what depends on one is not checked."""
    subject = Subject(assignment, spec, machine, tuple(rules))
    for check in _CHECKS:
        check(subject)
    order = list(Severity)
    return tuple(sorted(subject.findings(), key=lambda finding: order.index(finding.severity)))
