"""The schema of conf/: key=value words in, one frozen config per command out."""

from autoplace.config.build import load_config
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

__all__ = [
    "BenchConfig",
    "CheckConfig",
    "Config",
    "EngineConfig",
    "ExportConfig",
    "InspectConfig",
    "MeasureConfig",
    "ModelConfig",
    "PlanConfig",
    "ProbeConfig",
    "ReportConfig",
    "RunnerConfig",
    "SamplerConfig",
    "SettingsConfig",
    "StorageConfig",
    "SynthConfig",
    "TuneConfig",
    "load_config",
]
