"""What `check` answers: as a document, and as text for people."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from autoplace.commands.fit import DeviceFit, Fit, fit_document, fit_table, zone_of_fit
from autoplace.commands.output import answer_console, table
from autoplace.config import CheckConfig
from autoplace.placement.breakdown import Share
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.zones import Zone
from autoplace.rules.explain import Explanation
from autoplace.rules.finding import Finding, Severity
from autoplace.units import format_bytes

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.ADVICE: "cyan"}


class Proposal(Protocol):
    """A change after which everything fits: of rules (`Change`), or of flags."""

    @property
    def what(self) -> str: ...

    @property
    def plan(self) -> MemoryPlan: ...


@dataclass(frozen=True)
class Answer:
    """All that was found out about one rule file."""

    name: str
    model: str
    findings: Sequence[Finding]
    fit: Fit | None
    no_fit_reason: str = ""
    facts: Sequence[str] = ()
    changes: Sequence[Proposal] = ()
    shares: Sequence[Share] = ()
    explanations: Sequence[Explanation] = ()
    launch: Sequence[str] = ()

    @property
    def is_good(self) -> bool:
        """Whether it runs and, as far as can be said, fits."""
        if self.fit is None and not self.launch:
            return False
        if self.fit is not None and zone_of_fit(self.fit) is Zone.DOES_NOT_FIT:
            return False
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def document(config: CheckConfig, answer: Answer) -> dict[str, Any]:
    """For `output=json`."""
    return {
        "rules": answer.name,
        "hardware": config.machine.name,
        "model": answer.model,
        "engine": config.engine.name,
        "ok": answer.is_good,
        "facts": list(answer.facts),
        "findings": [_finding(finding) for finding in answer.findings],
        "memory": _memory(answer) if answer.fit else None,
        "no_memory_because": answer.no_fit_reason or None,
        "changes": [_change(config, change) for change in answer.changes],
        "explain": [_explanation(one) for one in answer.explanations],
        "launch": list(answer.launch),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity.value,
        "code": finding.code,
        "message": finding.message,
        "effect": finding.effect,
        "remedy": finding.remedy,
        "rule": finding.rule,
        "line": finding.line,
        "rules": list(finding.all_rules),
        "lines": list(finding.all_lines),
        "layers": list(finding.layers),
        "place": finding.place,
    }


def _memory(answer: Answer) -> dict[str, Any]:
    assert answer.fit is not None
    shares = [
        {
            "device": share.device,
            "role": share.role,
            "operator": share.operator,
            "num_modules": share.num_modules,
            "bytes": share.n_bytes,
        }
        for share in answer.shares
    ]
    return fit_document(answer.fit) | {"tightest": tightest(answer.fit), "weights": shares}


def _change(config: CheckConfig, change: Proposal) -> dict[str, Any]:
    plan = change.plan
    return {
        "what": change.what,
        "peak_bytes": {device: memory.peak for device, memory in plan.by_device.items()},
        "left_bytes": {d: -over for d, over in plan.overrun_bytes(config.machine).items()},
    }


def _explanation(one: Explanation) -> dict[str, Any]:
    return {
        "module": one.path,
        "rule": one.rule,
        "line": one.line,
        "later_rules": list(one.later),
        "device": one.device,
        "class": one.class_name,
        "operator": one.operator,
        "bytes": one.n_bytes,
        "note": one.note,
    }


def tightest(fit: Fit) -> str:
    """The device with the least left, for its size where all is well."""
    return min(fit.devices, key=lambda device: device.margin).device


def show(config: CheckConfig, answer: Answer) -> None:
    """Facts, findings by severity, the table, the changes that would fit."""
    console = answer_console()
    for fact in answer.facts:
        console.print(f"! {fact}", style="bold", soft_wrap=True)
    for finding in answer.findings:
        _show_finding(console, finding)
    if not answer.findings:
        console.print(f"{answer.name}: nothing found for {config.engine.name}")
    if answer.fit is None:
        console.print(f"memory: no verdict: {answer.no_fit_reason}", soft_wrap=True)
    else:
        console.print(verdict_line(config, answer), style="bold", soft_wrap=True)
        console.print(fit_table("", answer.fit))
        if answer.shares:
            console.print(_shares_table(answer.shares))
    for line in _change_lines(answer.changes):
        console.print(line, soft_wrap=True)
    for one in answer.explanations:
        console.print(str(one), soft_wrap=True)
    for line in answer.launch:
        console.print(f"launch: {line}", soft_wrap=True)


def _show_finding(console: Console, finding: Finding) -> None:
    place = f" ({finding.place})" if finding.place else ""
    head = f"{finding.severity.value} {finding.code}{place}: {finding.message}"
    console.print(head, style=_COLOURS[finding.severity], soft_wrap=True)
    if finding.effect:
        console.print(f"    at run time: {finding.effect}", soft_wrap=True)
    if finding.remedy:
        console.print(f"    instead: {finding.remedy}", soft_wrap=True)


def verdict_line(config: CheckConfig, answer: Answer) -> str:
    """`deepseek-v2 on 8xl40 with ktransformers-0.3: does not fit: cuda:1 needs … B of … B`."""
    fit = answer.fit
    assert fit is not None
    zone = zone_of_fit(fit)
    head = f"{answer.model} on {config.machine.name} with {config.engine.name}: {zone.value}"
    if fit.gpus_fit != fit.host_fits:
        head += " (the GPUs do, the host does not)" if fit.gpus_fit else " (the host does)"
    over = [
        f"{device.device} needs {device.peak:,} B ({device.weights:,} B of weights) of "
        f"{device.budget:,} B, {format_bytes(-device.margin)} too little{_when(device)}"
        for device in fit.devices
        if device.margin < 0
    ]
    if over:
        return f"{head}: {'; '.join(over)}"
    least = min(fit.devices, key=lambda device: device.margin)
    return f"{head}; {format_bytes(least.margin)} left on {least.device}, the tightest"


def _when(device: DeviceFit) -> str:
    """A steady state that fits tells people where to look."""
    standing = device.weights + device.kv_cache + device.workspace
    if standing <= device.budget < device.load_peak:
        return f" while it loads; once loaded {standing:,} B fit"
    return ""


def _shares_table(shares: Sequence[Share]) -> Table:
    rows = table("weights", "device", "role", "operator", "modules", "bytes", "")
    for share in shares:
        rows.add_row(
            share.device,
            share.role,
            share.operator,
            str(share.num_modules),
            f"{share.n_bytes:,}",
            format_bytes(share.n_bytes),
        )
    return rows


def _change_lines(changes: Sequence[Proposal]) -> Iterator[str]:
    for change in changes:
        plan = change.plan
        peaks = ", ".join(
            f"{device} {memory.peak:,} B ({format_bytes(memory.peak)})"
            for device, memory in plan.by_device.items()
            if memory.peak
        )
        yield f"would fit: {change.what} → {peaks}"
