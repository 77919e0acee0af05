"""`check` for engines that flags drive: a file's placement, or a line of arguments, as flags."""

from pathlib import Path

from autoplace.architectures.spec import ModelSpec
from autoplace.commands.check_report import Answer
from autoplace.commands.fit import fit_of
from autoplace.config import CheckConfig
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.layout import (
    Arguments,
    arguments_of,
    check_overrides,
    layer_devices,
    parse_arguments,
)
from autoplace.export.llama_cpp.memory import plan_llama_cpp
from autoplace.export.sglang_kt import flags_of
from autoplace.rules.finding import Finding, Severity
from autoplace.rules.lint import Examined, examine
from autoplace.rules.read import read_rules, read_text
from autoplace.rules.subject import homes_of

_LINE_STARTS = ("-", "llama-", "./llama-")


def check_flags(config: CheckConfig, spec: ModelSpec, path: Path) -> Answer:
    """What the file means for the engine. Raises `AutoplaceError` where its flags cannot say it."""
    text = read_text(path)
    if config.engine.name == "sglang-kt":
        return _sglang(config, spec, _examined(text, spec, path), path)
    num_layers = spec.geometry.num_layers
    if _is_line(text):
        arguments = parse_arguments(text.replace("\\\n", " "), num_layers=num_layers)
        return _llama(config, spec, arguments, path)
    examined = _examined(text, spec, path)
    homes = homes_of(examined.assignment, spec)
    arguments = arguments_of(examined.assignment, homes, spec)
    return _llama(config, spec, arguments, path)


def _is_line(text: str) -> bool:
    """A command line, not a YAML list of rules, whose entries start with a dash and a space."""
    lines = [line.strip() for line in text.splitlines() if line.strip()[:1] not in ("", "#")]
    first = lines[0] if lines else ""
    return first.startswith(_LINE_STARTS) and not first.startswith("- ") and first != "-"


def _examined(text: str, spec: ModelSpec, path: Path) -> Examined:
    """The placement that a rule file means, by its rules alone: its engine need not be this one."""
    examined = examine(read_rules(text, source=str(path)), spec, engine="builtin")
    errors = [finding for finding in examined.findings if finding.severity is Severity.ERROR]
    if errors:
        raise AutoplaceError(f"{path.name} means no placement to export: {errors[0]}")
    return examined


def _llama(config: CheckConfig, spec: ModelSpec, arguments: Arguments, path: Path) -> Answer:
    gpus = [gpu.name for gpu in config.machine.gpus]
    findings: list[Finding] = check_overrides(arguments, list(spec.tensors))
    if any(finding.code == "bad-pattern" for finding in findings):
        return Answer(path.name, spec.name, findings, None, "a pattern does not compile")
    plan = plan_llama_cpp(
        spec,
        arguments,
        gpus,
        workload=config.workload,
        settings=config.settings.resolve(config.machine),
    )
    used = dict.fromkeys(layer_devices(arguments, spec.geometry.num_layers, gpus))
    line = f"llama-server -m GGUF -c {config.workload.context_tokens} {arguments.line()}"
    return Answer(
        path.name,
        spec.name,
        findings,
        fit_of(plan, config.machine),
        facts=(f"llama.cpp holds the file's own blocks on every device ({', '.join(used)})",),
        launch=(line,),
    )


def _sglang(config: CheckConfig, spec: ModelSpec, examined: Examined, path: Path) -> Answer:
    line = flags_of(
        examined.assignment,
        homes_of(examined.assignment, spec),
        spec,
        config.machine,
        config.settings.resolve(config.machine),
    )
    reason = "sglang-kt has no memory profile here"
    return Answer(path.name, spec.name, examined.findings, None, reason, launch=(line,))
