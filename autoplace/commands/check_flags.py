"""`check` for engines that flags drive: a file's placement, or a line of arguments, as flags."""

from dataclasses import replace
from pathlib import Path

from autoplace.architectures.spec import ModelSpec
from autoplace.commands.check_report import Answer
from autoplace.commands.fit import fit_of
from autoplace.config import CheckConfig
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import (
    LlamaCppArgs,
    arguments_of,
    buffers_of,
    check_overrides,
    layer_devices,
    parse_args,
)
from autoplace.export.llama_cpp.layout import gpus_of
from autoplace.export.llama_cpp.memory import plan_llama_cpp
from autoplace.export.llama_cpp.placed import with_settings
from autoplace.export.sglang_kt import flags_of
from autoplace.rules.finding import Finding, Severity
from autoplace.rules.lint import Examined, examine
from autoplace.rules.read import read_rules, read_text
from autoplace.rules.subject import homes_of

_LINE_STARTS = ("-", "llama-", "./llama-", "LLAMA_ARG_")


def check_flags(config: CheckConfig, spec: ModelSpec, path: Path) -> Answer:
    """What the file means for the engine. Raises `AutoplaceError` where its flags cannot say it."""
    text = read_text(path)
    if config.engine.name == "sglang-kt":
        return _sglang(config, spec, _examined(text, spec, path), path)
    if _is_line(text):
        return _llama(config, spec, parse_args(text), path)
    examined = _examined(text, spec, path)
    buffers = buffers_of(config.machine)
    homes = homes_of(examined.assignment, spec)
    args = with_settings(
        arguments_of(examined.assignment, homes, spec, buffers),
        config.settings.resolve(config.machine),
        buffers,
        context_tokens=config.workload.context_tokens,
    )
    return _llama(config, spec, args, path)


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


def _llama(config: CheckConfig, spec: ModelSpec, args: LlamaCppArgs, path: Path) -> Answer:
    buffers = buffers_of(config.machine)
    findings: list[Finding] = check_overrides(args, list(spec.tensors), buffers)
    unreadable = [f for f in findings if f.code in ("bad-pattern", "unknown-buffer")]
    if unreadable:
        return Answer(path.name, spec.name, findings, None, unreadable[0].message)
    plan = plan_llama_cpp(spec, args, buffers, context_tokens=config.workload.context_tokens)
    used = dict.fromkeys(layer_devices(args, spec.geometry.num_layers, gpus_of(buffers)))
    return Answer(
        path.name,
        spec.name,
        findings,
        fit_of(plan, config.machine),
        facts=(f"llama.cpp holds the file's own blocks on every device ({', '.join(used)})",),
        launch=launch_lines(args),
    )


def launch_lines(args: LlamaCppArgs) -> tuple[str, ...]:
    """What to paste: the server, and a chat in the terminal."""
    named = args if args.model else replace(args, model="GGUF")
    return tuple(named.line(program) for program in ("llama-server", "llama-cli"))


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
