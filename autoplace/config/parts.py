"""The groups of conf/ that several commands have, each checked and built."""

from pathlib import Path

from autoplace.bench.request import MeasureSettings
from autoplace.config.compose import Composed
from autoplace.config.group_configs import (
    MeasureConfig,
    ModelConfig,
    SamplerConfig,
    SettingsConfig,
    StorageConfig,
)
from autoplace.config.values import (
    path_of,
    require_at_least,
    require_folder_name,
    require_not_negative,
    require_one_of,
    require_positive,
)
from autoplace.errors import AutoplaceError
from autoplace.placement.settings import KV_TYPES
from autoplace.workload import Workload

DATABASE = "studies.db"


def build_model(composed: Composed) -> ModelConfig:
    preset = dict(composed.values["model"])
    path, quant = preset.pop("path"), preset.pop("quant")
    if path is None:
        return ModelConfig(composed.choices["model"], None, preset, quant)
    if "model.quant" in composed.given:
        raise AutoplaceError("model.quant is for presets: a file has its own types")
    file = Path(path).expanduser()
    return ModelConfig(name=file.name.removesuffix(".gguf"), path=file, preset={})


def build_workload(composed: Composed) -> Workload:
    values = composed.values["workload"]
    prompt, output = values["prompt_tokens"], values["output_tokens"]
    require_at_least("workload.prompt_tokens", prompt, 1)
    require_at_least("workload.output_tokens", output, 1)
    context = prompt + output if values["context_tokens"] is None else values["context_tokens"]
    if context < prompt + output:
        raise AutoplaceError(
            f"workload.context_tokens is {context}, but prompt and output take {prompt + output}"
        )
    name = values["name"]
    require_folder_name("workload.name", name)
    if name is None or ("workload.name" not in composed.given and composed.changed("workload")):
        name = f"{prompt}-{output}-{context}"
    return Workload(name, prompt, output, context)


def build_settings(composed: Composed) -> SettingsConfig:
    values = composed.values["settings"]
    for key in ("num_threads", "prefill_chunk"):
        if values[key] is not None:
            require_at_least(f"settings.{key}", values[key], 1)
    if values["kv_type"] is not None:
        require_one_of("settings.kv_type", values["kv_type"], KV_TYPES)
    return SettingsConfig(**values)


def build_measure(composed: Composed) -> MeasureConfig:
    values = dict(composed.values["measure"])
    basis, bias, noise = (values.pop(key) for key in ("basis", "bias", "noise"))
    require_not_negative("measure.bias", bias)
    require_not_negative("measure.noise", noise)
    require_one_of("measure.basis", basis, ("measured", "predicted"))
    require_at_least("measure.min_repeats", values["min_repeats"], 1)
    require_at_least("measure.max_repeats", values["max_repeats"], values["min_repeats"])
    require_at_least("measure.quality_tokens", values["quality_tokens"], 1)
    require_at_least("measure.seed", values["seed"], 0)
    require_positive("measure.max_relative_spread", values["max_relative_spread"])
    require_positive("measure.time_limit_s", values["time_limit_s"])
    return MeasureConfig(
        predicted=basis == "predicted",
        settings=MeasureSettings(**values),
        bias=bias,
        noise=noise,
    )


def build_sampler(composed: Composed) -> SamplerConfig:
    values = composed.values["sampler"]
    for key, least in (("seed", 0), ("n_startup_trials", 0), ("population_size", 2)):
        require_at_least(f"sampler.{key}", values[key], least)
    return SamplerConfig(**values)


def build_storage(composed: Composed, study_dir: Path) -> StorageConfig:
    values = composed.values["storage"]
    require_positive("storage.busy_timeout_s", values["busy_timeout_s"])
    path = path_of(values["path"]) or study_dir / DATABASE
    return StorageConfig(name=values["name"], path=path, busy_timeout_s=values["busy_timeout_s"])
