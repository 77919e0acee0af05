"""What a command is asked to do: frozen, checked, and free of OmegaConf."""

from dataclasses import dataclass
from pathlib import Path

from autoplace.config.group_configs import (
    EngineConfig,
    MeasureConfig,
    ModelConfig,
    RunnerConfig,
    SamplerConfig,
    SettingsConfig,
    StorageConfig,
)
from autoplace.hardware.machine import Machine
from autoplace.workload import Workload


@dataclass(frozen=True)
class InspectConfig:
    model: ModelConfig
    output: str


@dataclass(frozen=True)
class SynthConfig:
    model: ModelConfig
    out: Path
    sparse: bool
    num_shards: int
    seed: int
    output: str


@dataclass(frozen=True)
class PlanConfig:
    machine: Machine
    model: ModelConfig
    workload: Workload
    engine: EngineConfig
    settings: SettingsConfig
    rules: Path | None
    output: str
    compare: tuple[tuple[str, Machine, str], ...] = ()
    """What is compared: its name, machine and engine."""
    out: Path | None = None
    """Where the pick's rule file goes."""
    calibration: Path | None = None
    """None: the one that is kept of this machine and engine, if there is one."""


@dataclass(frozen=True)
class ProbeConfig:
    machine: Machine
    """This one; its GPUs may be emulated."""
    model: ModelConfig
    engine: EngineConfig
    out: Path | None
    time_limit_s: float
    output: str


@dataclass(frozen=True)
class CheckConfig:
    machine: Machine
    model: ModelConfig
    workload: Workload
    engine: EngineConfig
    settings: SettingsConfig
    rules: Path
    """A rule file, a folder of them, or a pattern as `studies/**/*.yaml`."""
    output: str
    explain: str | None = None
    """A module, or a pattern of modules, to explain."""
    fix: Path | None = None
    """Where to write the corrected file."""
    numa_copies: int | None = None
    """How often the host holds the experts; None: once a NUMA node in KTransformers."""
    paths: tuple[Path, ...] = ()
    """The files that `rules` means, at least one."""


@dataclass(frozen=True)
class ExportConfig:
    machine: Machine
    model: ModelConfig
    workload: Workload
    engine: EngineConfig
    """The engine that is written for."""
    settings: SettingsConfig
    rules: Path
    out: Path | None
    """Where to write; None: standard output."""
    output: str


@dataclass(frozen=True)
class BenchConfig:
    machine: Machine
    """Present on this machine, with UUIDs, unless its GPUs are emulated."""
    model: ModelConfig
    workload: Workload
    engine: EngineConfig
    settings: SettingsConfig
    measure: MeasureConfig
    runner: RunnerConfig
    rules: Path | None
    """None for llama.cpp alone, whose arguments may be given as `engine.args`."""
    output: str


@dataclass(frozen=True)
class TuneConfig:
    machine: Machine
    """Present on this machine, with UUIDs, unless its GPUs are emulated or measure=predicted."""
    model: ModelConfig
    workload: Workload
    engine: EngineConfig
    measure: MeasureConfig
    sampler: SamplerConfig
    runner: RunnerConfig
    storage: StorageConfig
    n_trials: int
    timeout_s: float | None
    rules: Path | None
    study_dir: Path
    max_kl: float | None
    prune: bool
    kv_type: str
    output: str
    audit_prunes: int = 0
    beside: str | None = None
    """Another engine that is tuned in the same run."""
    calibration: Path | None = None


@dataclass(frozen=True)
class ReportConfig:
    machine: Machine
    model: ModelConfig
    workload: Workload
    engine: EngineConfig
    measure: MeasureConfig
    storage: StorageConfig
    study_dir: Path
    max_kl: float | None
    """As given to the `tune` whose study is meant, like `kv_type`."""
    kv_type: str
    output: str


Config = (
    InspectConfig
    | SynthConfig
    | ProbeConfig
    | PlanConfig
    | CheckConfig
    | ExportConfig
    | BenchConfig
    | TuneConfig
    | ReportConfig
)
