"""`export`: a rule file's placement as another engine's rules or flags, checked for it first."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoplace.architectures.spec import ModelSpec
from autoplace.catalog.engines import engine
from autoplace.commands.model_source import describe_model
from autoplace.commands.output import print_json
from autoplace.config import ExportConfig
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment
from autoplace.placement.memory import MemoryPlan, plan_memory
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.rules.families import is_served
from autoplace.rules.finding import refuse
from autoplace.rules.header import Header, render_file
from autoplace.rules.launch import launch_lines, server_line
from autoplace.rules.lint import examine
from autoplace.rules.match import assign
from autoplace.rules.read import RuleFile, parse_rules, read_text
from autoplace.rules.read_back import read_back


@dataclass(frozen=True)
class Exported:
    """What is written, and the bytes that it takes under its engine's profile."""

    text: str
    plan: MemoryPlan


@dataclass(frozen=True)
class _Source:
    """A rule file as a placement of the model."""

    file: RuleFile
    placement: Placement
    assignment: Assignment
    settings: RunSettings


def run(config: ExportConfig) -> int:
    """Write the file, or print it. What cannot be said, or does not fit, is refused with why."""
    spec = describe_model(config.model, config.workload)
    exported = export(config, spec)
    if config.out is not None:
        _write(config.out, exported.text)
    if config.output == "json":
        print_json("export", _document(config, exported))
    elif config.out is None:
        print(exported.text, end="")
    return 0


def export(config: ExportConfig, spec: ModelSpec) -> Exported:
    """The placement for `engine`. Raises `AutoplaceError` with the reason, or the bytes."""
    source = _source(config, spec)
    if engine(config.engine.name).uses_rules:
        return _as_rules(config, spec, source)
    return _as_line(config, spec, source)


def _source(config: ExportConfig, spec: ModelSpec) -> _Source:
    file = parse_rules(read_text(config.rules), source=config.rules.name)
    written_for = file.header.engine if file.header else "builtin"
    source_engine = written_for if engine(written_for).uses_rules else "builtin"
    examined = examine(file, spec, engine=source_engine)
    refuse(examined.findings, source=config.rules.name)
    placement = read_back(assign(file.rules, spec, engine=source_engine), spec)
    header = file.header.settings if file.header else None
    settings = config.settings.resolve(config.machine, header)
    return _Source(file, placement, examined.assignment, settings)


def _as_rules(config: ExportConfig, spec: ModelSpec, source: _Source) -> Exported:
    from autoplace.export.ktransformers import rule_body_for

    name = config.engine.name
    body = rule_body_for(
        name,
        source.placement,
        spec,
        config.machine,
        workload=config.workload,
        settings=source.settings,
    )
    assignment = assign(parse_rules(body, source="the export").rules, spec, engine=name)
    plan = plan_memory(spec, assignment, workload=config.workload, settings=source.settings)
    header = _header(config, spec, source, plan)
    return Exported(render_file(header, body), plan)


def _header(config: ExportConfig, spec: ModelSpec, source: _Source, plan: MemoryPlan) -> Header:
    """Figures of another engine are named as that engine's; without any, all is predicted."""
    old, workload = source.file.header, config.workload
    placement = replace(source.placement, engine=config.engine.name)
    if old is None or old.fingerprint != spec.fingerprint:
        old = Header(
            config.engine.name, spec.name, spec.fingerprint, "", "predicted", source.settings
        )
    measured = old.basis != "predicted"
    return replace(
        old,
        engine=config.engine.name,
        hardware=config.machine.name,
        settings=source.settings,
        workload=workload.name,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        context_tokens=workload.context_tokens,
        measured_with=(old.measured_with or old.engine) if measured else "",
        predicted_bytes={d: memory.peak for d, memory in plan.by_device.items()},
        measured_bytes={},
        launch=(server_line(source.settings, context_tokens=workload.context_tokens),)
        if is_served(spec, engine=config.engine.name)
        else launch_lines(placement, source.settings),
    )


def _as_line(config: ExportConfig, spec: ModelSpec, source: _Source) -> Exported:
    if config.engine.name == "sglang-kt":
        from autoplace.export.sglang_kt import flags_of

        homes = [layer.device for layer in source.placement.layers]
        flags = flags_of(source.assignment, homes, spec, config.machine, source.settings)
        line, plan = flags.line(), flags.plan(spec, config.workload, source.settings)
    else:
        from autoplace.commands.check_flags import launch_lines as lines_of
        from autoplace.export.llama_cpp import args_of_placement, buffers_of
        from autoplace.export.llama_cpp.memory import plan_llama_cpp

        buffers, context = buffers_of(config.machine), config.workload.context_tokens
        args = args_of_placement(
            source.placement, source.settings, spec, buffers, context_tokens=context
        )
        plan = plan_llama_cpp(spec, args, buffers, context_tokens=context)
        line = lines_of(args)[0]
    try:
        plan.check(config.machine)
    except AutoplaceError as problem:
        raise type(problem)(
            f"{config.engine.name} cannot hold this placement: {problem}"
        ) from problem
    bytes_of = ", ".join(f"{device} {m.peak} B" for device, m in plan.by_device.items())
    comments = (
        f"# {spec.name} on {config.machine.name} with {config.engine.name}, "
        f"from {config.rules.name}\n# predicted: {bytes_of}\n"
    )
    return Exported(f"{comments}{line}\n", plan)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise AutoplaceError(f"cannot write {path}: {error.strerror}") from error


def _document(config: ExportConfig, exported: Exported) -> dict[str, Any]:
    return {
        "engine": config.engine.name,
        "hardware": config.machine.name,
        "out": str(config.out) if config.out else None,
        "text": exported.text,
        "peak_bytes": {d: memory.peak for d, memory in exported.plan.by_device.items()},
    }
