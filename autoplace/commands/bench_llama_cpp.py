"""What `bench engine=llama.cpp` measures: a line of arguments, a preset, or the defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.llama_cpp.tools import find_tools
from autoplace.bench.llama_cpp.words import refuse_what_it_has_not
from autoplace.bench.request import LlamaCppRun, TrialRequest
from autoplace.commands.fit import Fit, fit_of
from autoplace.commands.model_source import describe_model, model_file
from autoplace.commands.output import progress_console
from autoplace.config import BenchConfig
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import (
    LlamaCppArgs,
    buffers_of,
    parse_args,
    warnings_of,
)
from autoplace.export.llama_cpp.memory import plan_llama_cpp
from autoplace.export.llama_cpp.placed import settings_of
from autoplace.export.llama_cpp.preset import looks_like_preset, parse_preset
from autoplace.placement.settings import RunSettings
from autoplace.rules.read import read_text


@dataclass(frozen=True)
class Prepared:
    """A trial that is ready to be run."""

    spec: ModelSpec
    settings: RunSettings
    fit: Fit
    request: TrialRequest


def prepare_llama_cpp(config: BenchConfig) -> Prepared:
    """Raise `AutoplaceError` for what llama.cpp here cannot run."""
    spec = describe_model(config.model, config.workload)
    tools = find_tools(config.engine.binaries, tool=config.engine.tool)
    tools.require_devices(config.machine)
    progress_console().print(f"running llama.cpp by {tools.describe()}")
    args = _with_devices(_given(config), config)
    buffers = buffers_of(config.machine)
    _warn(args, spec, buffers, config)
    refuse_what_it_has_not(args, tools, source=_source(config))
    plan = plan_llama_cpp(spec, args, buffers, context_tokens=config.workload.context_tokens)
    settings = settings_of(args, num_cores=config.machine.num_cores)
    predicted = {name: memory.peak for name, memory in plan.by_device.items()}
    request = TrialRequest(
        model_path=str(model_file(config.model).resolve()),
        rules="",
        engine=config.engine.name,
        machine=config.machine,
        workload=config.workload,
        settings=settings,
        measure=config.measure.settings,
        llama_cpp=LlamaCppRun(args, tools, predicted),
    )
    return Prepared(spec, settings, fit_of(plan, config.machine), request)


def _given(config: BenchConfig) -> LlamaCppArgs:
    if config.rules is not None and config.engine.args:
        raise AutoplaceError("give the arguments either as rules=FILE or as engine.args, not both")
    if config.engine.args:
        return parse_args(config.engine.args)
    return _of_file(config.rules) if config.rules is not None else LlamaCppArgs()


def _source(config: BenchConfig) -> str:
    return config.rules.name if config.rules is not None else "engine.args"


def _warn(
    args: LlamaCppArgs, spec: ModelSpec, buffers: Mapping[str, str], config: BenchConfig
) -> None:
    """Raise `AutoplaceError` for what does not run, and for a preset's patterns that move nothing:
    it is of another model."""
    is_preset = config.rules is not None and looks_like_preset(read_text(config.rules))
    warnings = warnings_of(
        args, list(spec.tensors), buffers, source=_source(config), is_exported=is_preset
    )
    for warning in warnings:
        progress_console().print(f"warning: {warning}", soft_wrap=True)


def _of_file(path: Path) -> LlamaCppArgs:
    text = read_text(path)
    if not looks_like_preset(text):
        return parse_args(text)
    sections = parse_preset(text, source=path.name)
    if len(sections) != 1:
        raise AutoplaceError(f"{path.name} is for {', '.join(sections)}: bench takes one model's")
    return next(iter(sections.values()))


def _with_devices(args: LlamaCppArgs, config: BenchConfig) -> LlamaCppArgs:
    endpoints = tuple(gpu.endpoint for gpu in config.machine.gpus if gpu.endpoint)
    return replace(args, rpc=endpoints or args.rpc)
