"""From checked values to what a command is asked to do."""

import glob
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoplace.bench.request import MeasureSettings
from autoplace.config.compose import Composed, compose_command
from autoplace.config.domain import (
    BenchConfig,
    CheckConfig,
    Config,
    EngineConfig,
    ExportConfig,
    InspectConfig,
    MeasureConfig,
    ModelConfig,
    PlanConfig,
    ProbeConfig,
    ReportConfig,
    RunnerConfig,
    SamplerConfig,
    SettingsConfig,
    StorageConfig,
    SynthConfig,
    TuneConfig,
)
from autoplace.config.groups import choices, profile
from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.hardware.machine import Machine
from autoplace.hardware.profile import machine_from_profile
from autoplace.placement.settings import CUDA_GRAPHS, INTERLEAVE, KV_TYPES
from autoplace.workload import Workload

OUTPUTS = ("text", "json")
DTYPES = ("bfloat16", "float32")
LLAMA_CPP_TOOLS = ("llama-bench", "llama-server", "xllamacpp")
DATABASE = "studies.db"


def load_config(command: str, overrides: Sequence[str]) -> Config:
    """The frozen config of a command from `key=value` words in Hydra's grammar.

    Raises `AutoplaceError`, one line each, for keys, groups and values that do not exist, with
    the near miss; and for a profile whose GPUs are not here where it is to be measured.
    """
    composed = compose_command(command, overrides)
    _one_of("output", composed.values["output"], OUTPUTS)
    return BUILDERS[command](composed)


def _inspect(composed: Composed) -> InspectConfig:
    return InspectConfig(model=_model(composed), output=composed.values["output"])


def _synth(composed: Composed) -> SynthConfig:
    values = composed.values
    model = _model(composed)
    if model.path is not None:
        raise AutoplaceError("synth writes a preset: give model=NAME and out=FILE, not model.path")
    _at_least("num_shards", values["num_shards"], 1)
    _at_least("seed", values["seed"], 0)
    return SynthConfig(
        model=ModelConfig(
            name=model.name,
            path=None,
            preset=model.preset,
            quant=values["quant"] or model.quant,
        ),
        out=_needed_path(composed, "synth", "out"),
        sparse=values["sparse"],
        num_shards=values["num_shards"],
        seed=values["seed"],
        output=values["output"],
    )


def _plan(composed: Composed) -> PlanConfig:
    return PlanConfig(
        machine=_machine(composed),
        model=_model(composed),
        workload=_workload(composed),
        engine=_engine(composed),
        settings=_settings(composed),
        rules=_path(composed.values["rules"]),
        output=composed.values["output"],
        compare=_compared(composed),
        out=_path(composed.values["out"]),
        calibration=_path(composed.values["calibration"]),
    )


def _compared(composed: Composed) -> tuple[tuple[str, Machine, str], ...]:
    """Names of hardware, on the engine that is chosen, or of engines, on the machine that is."""
    chosen = composed.values["engine"]["name"]
    compared = []
    for name in composed.values["compare"]:
        if name in choices("engine"):
            compared.append((name, _machine(composed), name))
        elif name in choices("hardware"):
            compared.append((name, machine_from_profile(profile(name)), chosen))
        else:
            known = (*choices("hardware"), *choices("engine"))
            raise AutoplaceError(
                f"compare: no hardware or engine {name!r}{did_you_mean(name, known)}"
            )
    return tuple(compared)


def _probe(composed: Composed) -> ProbeConfig:
    values = composed.values
    _positive("time_limit_s", values["time_limit_s"])
    return ProbeConfig(
        machine=_present(_machine(composed)),
        model=_model(composed),
        engine=_engine(composed),
        out=_path(values["out"]),
        time_limit_s=values["time_limit_s"],
        output=values["output"],
    )


def _check(composed: Composed) -> CheckConfig:
    values = composed.values
    rules = _needed_path(composed, "check", "rules")
    paths = _rule_files(rules)
    if values["numa_copies"] is not None:
        _at_least("numa_copies", values["numa_copies"], 1)
    if values["fix"] is not None and len(paths) != 1:
        raise AutoplaceError(f"fix mends one file, but rules={rules} means {len(paths)}")
    return CheckConfig(
        machine=_machine(composed),
        model=_model(composed),
        workload=_workload(composed),
        engine=_engine(composed),
        settings=_settings(composed),
        rules=rules,
        output=values["output"],
        explain=values["explain"],
        fix=_path(values["fix"]),
        numa_copies=values["numa_copies"],
        paths=paths,
    )


def _rule_files(rules: Path) -> tuple[Path, ...]:
    """The file itself, those of a folder, or those that a pattern finds; at least one."""
    if rules.is_dir():
        found = sorted(rules.rglob("*.yaml"))
    elif rules.exists() or not set(str(rules)) & set("*?["):
        return (rules,)
    else:
        found = [Path(name) for name in sorted(glob.glob(str(rules), recursive=True))]
    if not found:
        raise AutoplaceError(f"rules={rules} finds no rule file")
    return tuple(path for path in found if path.is_file())


def _export(composed: Composed) -> ExportConfig:
    return ExportConfig(
        machine=_machine(composed),
        model=_model(composed),
        workload=_workload(composed),
        engine=_engine(composed),
        settings=_settings(composed),
        rules=_needed_path(composed, "export", "rules"),
        out=_path(composed.values["out"]),
        output=composed.values["output"],
    )


def _bench(composed: Composed) -> BenchConfig:
    is_llama_cpp = composed.values["engine"]["name"] == "llama.cpp"
    rules = _path(composed.values["rules"])
    if rules is None and not is_llama_cpp:
        rules = _needed_path(composed, "bench", "rules")
    measure = _measure(composed)
    return BenchConfig(
        machine=_measured_machine(composed, measure),
        model=_model(composed),
        workload=_workload(composed),
        engine=_engine(composed),
        settings=_settings(composed),
        measure=measure,
        runner=RunnerConfig(**composed.values["runner"]),
        rules=rules,
        output=composed.values["output"],
    )


def _tune(composed: Composed) -> TuneConfig:
    values = composed.values
    _at_least("n_trials", values["n_trials"], 1)
    _at_least("audit_prunes", values["audit_prunes"], 0)
    _one_of("kv_type", values["kv_type"], KV_TYPES)
    for key in ("timeout_s", "max_kl"):
        if values[key] is not None:
            _positive(key, values[key])
    measure = _measure(composed)
    if values["beside"] is not None:
        _one_of("beside", values["beside"], ("builtin",))
        if values["engine"]["name"] != "llama.cpp" or measure.predicted:
            raise AutoplaceError("beside=builtin is for a measured tune of engine=llama.cpp")
    return TuneConfig(
        machine=_measured_machine(composed, measure),
        model=_model(composed),
        workload=_workload(composed),
        engine=_engine(composed),
        measure=measure,
        sampler=_sampler(composed),
        runner=RunnerConfig(**values["runner"]),
        storage=_storage(composed),
        n_trials=values["n_trials"],
        timeout_s=values["timeout_s"],
        rules=_path(values["rules"]),
        study_dir=_needed_path(composed, "tune", "study_dir"),
        max_kl=values["max_kl"],
        prune=values["prune"],
        audit_prunes=values["audit_prunes"],
        beside=values["beside"],
        calibration=_path(values["calibration"]),
        kv_type=values["kv_type"],
        output=values["output"],
    )


def _report(composed: Composed) -> ReportConfig:
    _one_of("kv_type", composed.values["kv_type"], KV_TYPES)
    return ReportConfig(
        machine=_machine(composed),
        model=_model(composed),
        workload=_workload(composed),
        engine=_engine(composed),
        measure=_measure(composed),
        storage=_storage(composed),
        study_dir=_needed_path(composed, "report", "study_dir"),
        max_kl=composed.values["max_kl"],
        kv_type=composed.values["kv_type"],
        output=composed.values["output"],
    )


BUILDERS: Mapping[str, Callable[[Composed], Config]] = {
    "inspect": _inspect,
    "synth": _synth,
    "probe": _probe,
    "plan": _plan,
    "check": _check,
    "export": _export,
    "bench": _bench,
    "tune": _tune,
    "report": _report,
}


def _model(composed: Composed) -> ModelConfig:
    preset = dict(composed.values["model"])
    path, quant = preset.pop("path"), preset.pop("quant")
    if path is None:
        return ModelConfig(composed.choices["model"], None, preset, quant)
    if "model.quant" in composed.given:
        raise AutoplaceError("model.quant is for presets: a file has its own types")
    file = Path(path).expanduser()
    return ModelConfig(name=file.name.removesuffix(".gguf"), path=file, preset={})


def _machine(composed: Composed) -> Machine:
    """The machine; a profile with changed numbers gets a name that says so."""
    profile = dict(composed.values["hardware"])
    _folder_name("hardware.name", profile["name"])
    for key in ("num_cores", "numa_nodes"):
        if profile[key] is not None:
            _at_least(f"hardware.{key}", profile[key], 1)
    changed = _changed(composed, "hardware")
    if profile["name"] is not None or composed.choices["hardware"] == "auto":
        profile["name"] = "-".join([profile["name"] or "auto", *changed])
    return machine_from_profile(profile)


def _measured_machine(composed: Composed, measure: MeasureConfig) -> Machine:
    machine = _machine(composed)
    return machine if measure.predicted else _present(machine)


def _present(machine: Machine) -> Machine:
    """The machine, if it is here. Who does not measure needs no look at the GPUs."""
    from autoplace.hardware.detect import require_present

    return require_present(machine)


def _workload(composed: Composed) -> Workload:
    values = composed.values["workload"]
    prompt, output = values["prompt_tokens"], values["output_tokens"]
    _at_least("workload.prompt_tokens", prompt, 1)
    _at_least("workload.output_tokens", output, 1)
    context = prompt + output if values["context_tokens"] is None else values["context_tokens"]
    if context < prompt + output:
        raise AutoplaceError(
            f"workload.context_tokens is {context}, but prompt and output take {prompt + output}"
        )
    name = values["name"]
    _folder_name("workload.name", name)
    if name is None or ("workload.name" not in composed.given and _changed(composed, "workload")):
        name = f"{prompt}-{output}-{context}"
    return Workload(name, prompt, output, context)


def _engine(composed: Composed) -> EngineConfig:
    values = composed.values["engine"]
    _one_of("engine.dtype", values["dtype"], DTYPES)
    graphs = _switch(values["cuda_graphs"])
    _one_of("engine.cuda_graphs", graphs, CUDA_GRAPHS)
    interleave = _switch(values["interleave"])
    _one_of("engine.interleave", interleave, INTERLEAVE)
    return EngineConfig(
        values["name"], values["dtype"], graphs, interleave, **_llama_cpp(values, values["name"])
    )


def _switch(value: str) -> str:
    """What YAML made of on and off."""
    return {"True": "on", "False": "off"}.get(value, value)


def _llama_cpp(values: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """What only llama.cpp has, refused for other engines."""
    given = [key for key in ("binaries", "tool", "args") if values[key] is not None]
    if engine != "llama.cpp" and (given or values["keep"]):
        raise AutoplaceError(f"engine.{[*given, 'keep'][0]} is for engine=llama.cpp, not {engine}")
    if values["tool"] is not None:
        _one_of("engine.tool", values["tool"], LLAMA_CPP_TOOLS)
    if values["keep"] and not values["args"]:
        raise AutoplaceError('engine.keep keeps what engine.args="…" overrides, which is not given')
    paths = (values["binaries"] or "").split(":")
    return {
        "binaries": tuple(Path(path).expanduser() for path in paths if path),
        "tool": values["tool"],
        "args": values["args"],
        "keep": values["keep"],
    }


def _settings(composed: Composed) -> SettingsConfig:
    values = composed.values["settings"]
    for key in ("num_threads", "prefill_chunk"):
        if values[key] is not None:
            _at_least(f"settings.{key}", values[key], 1)
    if values["kv_type"] is not None:
        _one_of("settings.kv_type", values["kv_type"], KV_TYPES)
    return SettingsConfig(**values)


def _measure(composed: Composed) -> MeasureConfig:
    values = dict(composed.values["measure"])
    basis, bias, noise = (values.pop(key) for key in ("basis", "bias", "noise"))
    _not_negative("measure.bias", bias)
    _not_negative("measure.noise", noise)
    _one_of("measure.basis", basis, ("measured", "predicted"))
    _at_least("measure.min_repeats", values["min_repeats"], 1)
    _at_least("measure.max_repeats", values["max_repeats"], values["min_repeats"])
    _at_least("measure.quality_tokens", values["quality_tokens"], 1)
    _at_least("measure.seed", values["seed"], 0)
    _positive("measure.max_relative_spread", values["max_relative_spread"])
    _positive("measure.time_limit_s", values["time_limit_s"])
    return MeasureConfig(
        predicted=basis == "predicted",
        settings=MeasureSettings(**values),
        bias=bias,
        noise=noise,
    )


def _sampler(composed: Composed) -> SamplerConfig:
    values = composed.values["sampler"]
    for key, least in (("seed", 0), ("n_startup_trials", 0), ("population_size", 2)):
        _at_least(f"sampler.{key}", values[key], least)
    return SamplerConfig(**values)


def _storage(composed: Composed) -> StorageConfig:
    values = composed.values["storage"]
    _positive("storage.busy_timeout_s", values["busy_timeout_s"])
    path = _path(values["path"]) or _needed_path(composed, "tune", "study_dir") / DATABASE
    return StorageConfig(name=values["name"], path=path, busy_timeout_s=values["busy_timeout_s"])


def _changed(composed: Composed, group: str) -> list[str]:
    """Overridden keys of a group: `gpu_memory_gib-12` for `hardware.gpu_memory_gib=12`."""
    return [
        re.sub(r"[^\w.+-]+", "-", f"{key.partition('.')[2]}-{value}").strip("-")
        for key, value in sorted(composed.given.items())
        if key.startswith(f"{group}.") and key != f"{group}.name"
    ]


def _needed_path(composed: Composed, command: str, key: str) -> Path:
    path = _path(composed.values[key])
    if path is None:
        raise AutoplaceError(f"{command} needs {key}=FILE")
    return path


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()


def _folder_name(key: str, name: str | None) -> None:
    """Names of hardware and workload are folders below `study_dir`."""
    if name is not None and (name in ("", ".", "..") or set(name) & set("/\\\0")):
        raise AutoplaceError(f"{key} names a folder, got {name!r}")


def _one_of(key: str, value: str, known: Sequence[str] | Mapping[str, object]) -> None:
    if value not in known:
        raise AutoplaceError(f"{key} is one of {', '.join(known)}, got {value!r}")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise AutoplaceError(f"{key} is at least {least}, got {value}")


def _not_negative(key: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise AutoplaceError(f"{key} is a number from 0 on, got {value}")


def _positive(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise AutoplaceError(f"{key} is a positive number, got {value}")
