"""`check`: what is wrong with a rule file, and whether it fits the machine."""

from typing import Any

from autoplace.architectures.spec import ModelSpec
from autoplace.commands.fit import Fit, fit_document, fit_of, fit_table, verdict
from autoplace.commands.model_source import describe_model
from autoplace.commands.output import answer_console, print_json
from autoplace.config import CheckConfig
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment
from autoplace.placement.memory import plan_memory
from autoplace.rules.finding import Finding, Severity
from autoplace.rules.lint import examine
from autoplace.rules.read import RuleFile, read_rules, read_text


def run(config: CheckConfig) -> int:
    """0 if nothing keeps the file from running; 1 for errors, or where it does not fit."""
    spec = describe_model(config.model, config.workload)
    rule_file = read_rules(read_text(config.rules), source=str(config.rules))
    examined = examine(rule_file, spec, engine=config.engine.name, machine=config.machine)
    assignment, findings = examined.assignment, examined.findings
    fit, no_fit_reason = _fit(config, spec, assignment, rule_file)
    if config.output == "json":
        print_json("check", _document(config, spec, findings, fit, no_fit_reason))
    else:
        _print(config, spec, findings, fit, no_fit_reason)
    has_errors = any(finding.severity is Severity.ERROR for finding in findings)
    return 1 if has_errors or fit is None or not fit.fits else 0


def _fit(
    config: CheckConfig, spec: ModelSpec, assignment: Assignment, rule_file: RuleFile
) -> tuple[Fit | None, str]:
    """The verdict on memory, or why there can be none: rules that no arithmetic can follow."""
    header = rule_file.header.settings if rule_file.header else None
    try:
        plan = plan_memory(
            spec,
            assignment,
            workload=config.workload,
            settings=config.settings.resolve(config.machine, header),
            dtype_bytes=config.engine.dtype_bytes,
        )
    except AutoplaceError as problem:
        return None, str(problem)
    return fit_of(plan, config.machine), ""


def _document(
    config: CheckConfig,
    spec: ModelSpec,
    findings: tuple[Finding, ...],
    fit: Fit | None,
    no_fit_reason: str,
) -> dict[str, Any]:
    return {
        "rules": config.rules.name,
        "hardware": config.machine.name,
        "model": spec.name,
        "engine": config.engine.name,
        "findings": [
            {
                "severity": finding.severity.value,
                "code": finding.code,
                "message": finding.message,
                "rule": finding.rule,
                "line": finding.line,
                "layers": list(finding.layers),
                "remedy": finding.remedy,
            }
            for finding in findings
        ],
        "memory": fit_document(fit) if fit else None,
        "no_memory_because": no_fit_reason or None,
    }


def _print(
    config: CheckConfig,
    spec: ModelSpec,
    findings: tuple[Finding, ...],
    fit: Fit | None,
    no_fit_reason: str,
) -> None:
    console = answer_console()
    for finding in findings:
        console.print(f"{finding.severity.value} {finding.code}: {finding}", soft_wrap=True)
    if not findings:
        console.print(f"{config.rules.name}: nothing found for {config.engine.name}")
    if fit is None:
        console.print(f"memory: no verdict: {no_fit_reason}", soft_wrap=True)
        return
    title = f"{spec.name} on {config.machine.name}: {verdict(fit)}"
    console.print(fit_table(title, fit))
