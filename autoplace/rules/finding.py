"""One thing that is wrong or doubtful in a rule file, said so that its author can mend it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from autoplace.errors import AutoplaceError


class Severity(Enum):
    """How much a finding matters. Only errors keep a file from being run."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


MOST_CHARACTERS = 400


def readable(text: str) -> str:
    """A sentence of a length that people read: a file may hold names and values of any length."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[: MOST_CHARACTERS // 2]} … {text[-MOST_CHARACTERS // 2 :]}"


@dataclass(frozen=True)
class Finding:
    """What is wrong, where, what it does at run time, and what to write instead."""

    severity: Severity
    code: str
    """Stable, in kebab case: `unknown-class`."""
    message: str
    rule: int | None = None
    """Number of the rule in the file, from 1; of the first where several have the fault."""
    line: int | None = None
    """Line of the file, from 1; of the first place."""
    layers: tuple[int, ...] = ()
    remedy: str = ""
    effect: str = ""
    """What happens at run time because of it."""
    rules: tuple[int, ...] = ()
    """All rules that have the fault; empty for at most one."""
    lines: tuple[int, ...] = ()
    """Their places, in the same order."""

    @property
    def all_rules(self) -> tuple[int, ...]:
        return self.rules or (() if self.rule is None else (self.rule,))

    @property
    def all_lines(self) -> tuple[int, ...]:
        return self.lines or ((self.line,) if self.line else ())

    @property
    def place(self) -> str:
        """`rule 3, line 24, layers 30-59`, as far as known."""
        parts = []
        for word, numbers in (("rule", self.all_rules), ("line", self.all_lines)):
            if numbers:
                shown = ranges(numbers) if word == "rule" else ", ".join(map(str, numbers))
                parts.append(f"{word}{'s' if len(numbers) > 1 else ''} {shown}")
        if self.layers:
            word = "layers" if len(self.layers) > 1 else "layer"
            parts.append(f"{word} {ranges(self.layers)}")
        return ", ".join(parts)

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return "; ".join(part for part in (text, self.effect, self.remedy) if part)


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that differ only in their place become one, at all the places."""
    merged: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.severity, finding.code, finding.message, finding.effect, finding.remedy)
        known = merged.get(key)
        merged[key] = finding if known is None else _joined(known, finding)
    return list(merged.values())


def _joined(first: Finding, second: Finding) -> Finding:
    rules = tuple(sorted({*first.all_rules, *second.all_rules}))
    lines = tuple(sorted({*first.all_lines, *second.all_lines}))
    return replace(
        first,
        rule=rules[0] if rules else None,
        line=lines[0] if lines else None,
        rules=rules if len(rules) > 1 else (),
        lines=lines if len(lines) > 1 else (),
        layers=tuple(sorted({*first.layers, *second.layers})),
    )


def ranges(numbers: Iterable[int]) -> str:
    """`0-2, 5` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def layers_text(layers: Sequence[int]) -> str:
    """`layer 3`, `layers 3-4, 30`."""
    return f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"


def refuse(findings: Sequence[Finding], *, source: str, shown: int = 3) -> None:
    """Raise one `AutoplaceError` naming the first few errors, if there are any."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return
    text = " | ".join(str(finding) for finding in errors[:shown])
    more = f" | and {len(errors) - shown} more" if len(errors) > shown else ""
    raise AutoplaceError(f"{source}: {text}{more}")
