"""`check` for engines that flags drive: a file's placement, or a line of arguments, as flags."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autoplace.architectures.spec import ModelSpec
from autoplace.commands.check_report import Answer
from autoplace.commands.fit import fit_of
from autoplace.config import CheckConfig
from autoplace.errors import AutoplaceError
from autoplace.export.flag_changes import LlamaSituation, smallest_flag_changes
from autoplace.export.llama_cpp import (
    LlamaCppArgs,
    arguments_of,
    buffers_of,
    check_overrides,
    layer_devices,
    parse_args,
)
from autoplace.export.llama_cpp.layout import gpus_of
from autoplace.export.llama_cpp.placed import with_settings
from autoplace.export.llama_cpp.preset import looks_like_preset, parse_preset
from autoplace.export.sglang_kt import flags_of, smaller_launches
from autoplace.rules.finding import Finding, Severity
from autoplace.rules.header import split_header
from autoplace.rules.lint import Examined, examine
from autoplace.rules.read import read_rules, read_text
from autoplace.rules.subject import homes_of

_LINE_STARTS = ("-", "llama-", "./llama-", "LLAMA_ARG_")


def check_flags(config: CheckConfig, spec: ModelSpec, path: Path) -> Answer:
    """What the file means for the engine. Raises `AutoplaceError` where its flags cannot say it."""
    text = read_text(path)
    if config.engine.name == "sglang-kt":
        return _sglang(config, spec, _examined(text, spec, path), path)
    if looks_like_preset(text):
        return _preset(config, spec, text, path)
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


def _preset(config: CheckConfig, spec: ModelSpec, text: str, path: Path) -> Answer:
    """A preset file of llama-server with one model in it."""
    _, body = split_header(text, source=path.name)
    sections = parse_preset(body, source=path.name)
    if len(sections) > 1:
        raise AutoplaceError(
            f"{path.name} is for {', '.join(sections)}: check takes a preset of one model"
        )
    answer = _llama(config, spec, next(iter(sections.values())), path)
    start = f"llama-server --models-dir DIR --models-preset {path.name}"
    return replace(answer, launch=(start, *answer.launch))


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
    situation = LlamaSituation(spec, args, buffers, config.machine, config.workload.context_tokens)
    used = dict.fromkeys(layer_devices(args, spec.geometry.num_layers, gpus_of(buffers)))
    return Answer(
        path.name,
        spec.name,
        findings,
        fit_of(situation.plan(), config.machine),
        changes=smallest_flag_changes(situation),
        facts=(
            *_no_placement(situation),
            f"llama.cpp holds the file's own blocks on every device ({', '.join(used)})",
        ),
        launch=launch_lines(args),
    )


def _no_placement(situation: LlamaSituation) -> Iterator[str]:
    """Blocks take the same bytes wherever they are."""
    plan, machine = situation.plan(), situation.machine
    weights = sum(memory.weights for memory in plan.by_device.values())
    have = sum(plan.budget_bytes(machine, device.name) for device in machine.devices)
    if weights > have:
        yield (
            f"no placement of this file fits this machine: its blocks are {weights:,} B wherever "
            f"they are, all devices together have {have:,} B"
        )


def launch_lines(args: LlamaCppArgs) -> tuple[str, ...]:
    """What to paste: the server, and a chat in the terminal."""
    named = args if args.model else replace(args, model="GGUF")
    return tuple(named.line(program) for program in ("llama-server", "llama-cli"))


def _sglang(config: CheckConfig, spec: ModelSpec, examined: Examined, path: Path) -> Answer:
    homes = homes_of(examined.assignment, spec)
    settings = config.settings.resolve(config.machine)
    flags = flags_of(examined.assignment, homes, spec, config.machine, settings)
    plan = flags.plan(spec, config.workload, settings)
    changes = smaller_launches(flags, spec, config.machine, config.workload, settings)
    over = any(n_bytes > 0 for n_bytes in plan.overrun_bytes(config.machine).values())
    return Answer(
        path.name,
        spec.name,
        examined.findings,
        fit_of(plan, config.machine),
        facts=("GPU weights are counted in bf16: a checkpoint in FP8 takes half",),
        changes=changes if over else (),
        launch=(flags.line(),),
    )
