"""The schema of conf/: key=value words in, one frozen config per command out."""

from autoplace.config.build import load_config
from autoplace.config.command_configs import (
    BenchConfig,
    CheckConfig,
    Config,
    ExportConfig,
    InspectConfig,
    PlanConfig,
    ProbeConfig,
    ReportConfig,
    SynthConfig,
    TuneConfig,
)
from autoplace.config.group_configs import (
    EngineConfig,
    MeasureConfig,
    ModelConfig,
    RunnerConfig,
    SamplerConfig,
    SettingsConfig,
    StorageConfig,
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
