"""One thing that is wrong or doubtful in a rule file, said so that its author can mend it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from autoplace.errors import AutoplaceError


class Severity(Enum):
    """How much a finding matters. Only errors keep a file from being run."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


@dataclass(frozen=True)
class Finding:
    """What is wrong, where, what it does at run time, and what to write instead."""

    severity: Severity
    code: str
    """Stable, in kebab case: `unknown-class`."""
    message: str
    rule: int | None = None
    """Number of the rule in the file, from 1."""
    line: int | None = None
    """Line of the file, from 1."""
    layers: tuple[int, ...] = ()
    remedy: str = ""

    @property
    def place(self) -> str:
        """`rule 3, line 24, layers 30-59`, as far as known."""
        parts = []
        if self.rule is not None:
            parts.append(f"rule {self.rule}")
        if self.line:
            parts.append(f"line {self.line}")
        if self.layers:
            parts.append(
                f"layers {ranges(self.layers)}"
                if len(self.layers) > 1
                else f"layer {self.layers[0]}"
            )
        return ", ".join(parts)

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text}; {self.remedy}" if self.remedy else text


def ranges(numbers: Iterable[int]) -> str:
    """`0-2, 5` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def refuse(findings: Sequence[Finding], *, source: str, shown: int = 3) -> None:
    """Raise one `AutoplaceError` naming the first few errors, if there are any."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return
    text = " | ".join(str(finding) for finding in errors[:shown])
    more = f" | and {len(errors) - shown} more" if len(errors) > shown else ""
    raise AutoplaceError(f"{source}: {text}{more}")
