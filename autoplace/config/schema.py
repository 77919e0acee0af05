"""The types of conf/: plain dataclasses, since OmegaConf cannot merge into frozen ones.

Defaults stand in conf/; every field here is required of it.
"""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING


@dataclass
class HardwareSchema:
    name: str | None = MISSING
    gpus: list[str] = MISSING
    host: str = MISSING
    host_memory_gib: float | None = MISSING
    host_reserve_gib: float = MISSING
    gpu_memory_gib: Any = MISSING
    reserve_gib: float = MISSING
    num_cores: int | None = MISSING
    numa_nodes: int | None = MISSING
    detect: bool = MISSING
    rpc: list[str] = MISSING
    emulated: bool = MISSING


@dataclass
class WorkloadSchema:
    name: str | None = MISSING
    prompt_tokens: int = MISSING
    output_tokens: int = MISSING
    context_tokens: int | None = MISSING


@dataclass
class EngineSchema:
    name: str = MISSING
    dtype: str = MISSING
    cuda_graphs: str = MISSING
    interleave: str = MISSING
    binaries: str | None = MISSING
    tool: str | None = MISSING
    args: str | None = MISSING
    keep: bool = MISSING


@dataclass
class SettingsSchema:
    num_threads: int | None = MISSING
    prefill_chunk: int | None = MISSING
    kv_type: str | None = MISSING


@dataclass
class MeasureSchema:
    basis: str = MISSING
    bias: float = MISSING
    noise: float = MISSING
    min_repeats: int = MISSING
    max_repeats: int = MISSING
    max_relative_spread: float = MISSING
    unstable_spread: float = MISSING
    max_wait_share: float = MISSING
    max_other_share: float = MISSING
    min_resident_share: float = MISSING
    time_limit_s: float = MISSING
    quality: bool = MISSING
    quality_tokens: int = MISSING
    by_role: bool = MISSING
    seed: int = MISSING


@dataclass
class SamplerSchema:
    name: str = MISSING
    seed: int = MISSING
    n_startup_trials: int = MISSING
    population_size: int = MISSING


@dataclass
class RunnerSchema:
    name: str = MISSING
    address: str | None = MISSING
    object_store_mib: int = MISSING


@dataclass
class StorageSchema:
    name: str = MISSING
    path: str | None = MISSING
    busy_timeout_s: float = MISSING


GROUPS: dict[str, Any] = {
    "hardware": HardwareSchema,
    "workload": WorkloadSchema,
    "engine": EngineSchema,
    "settings": SettingsSchema,
    "measure": MeasureSchema,
    "sampler": SamplerSchema,
    "runner": RunnerSchema,
    "storage": StorageSchema,
}
"""Config group → its schema. `model` has none: its keys are those of `geometry_from_preset`."""


@dataclass
class InspectSchema:
    output: str = MISSING


@dataclass
class SynthSchema:
    output: str = MISSING
    out: str | None = MISSING
    quant: str | None = MISSING
    sparse: bool = MISSING
    num_shards: int = MISSING
    seed: int = MISSING


@dataclass
class PlanSchema:
    output: str = MISSING
    rules: str | None = MISSING
    compare: list[str] = MISSING
    out: str | None = MISSING
    calibration: str | None = MISSING


@dataclass
class ProbeSchema:
    output: str = MISSING
    out: str | None = MISSING
    time_limit_s: float = MISSING


@dataclass
class CheckSchema:
    output: str = MISSING
    rules: str | None = MISSING
    explain: str | None = MISSING
    fix: str | None = MISSING
    numa_copies: int | None = MISSING


@dataclass
class ExportSchema:
    output: str = MISSING
    rules: str | None = MISSING
    out: str | None = MISSING


@dataclass
class BenchSchema:
    output: str = MISSING
    rules: str | None = MISSING


@dataclass
class TuneSchema:
    output: str = MISSING
    n_trials: int = MISSING
    timeout_s: float | None = MISSING
    rules: str | None = MISSING
    study_dir: str = MISSING
    max_kl: float | None = MISSING
    prune: bool = MISSING
    audit_prunes: int = MISSING
    beside: str | None = MISSING
    calibration: str | None = MISSING
    kv_type: str = MISSING


@dataclass
class ReportSchema:
    output: str = MISSING
    study_dir: str = MISSING
    max_kl: float | None = MISSING
    kv_type: str = MISSING


COMMANDS: dict[str, Any] = {
    "inspect": InspectSchema,
    "synth": SynthSchema,
    "probe": ProbeSchema,
    "plan": PlanSchema,
    "check": CheckSchema,
    "export": ExportSchema,
    "bench": BenchSchema,
    "tune": TuneSchema,
    "report": ReportSchema,
}
"""Command → the schema of its own keys."""
