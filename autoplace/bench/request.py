"""What a worker is told: pure data, so that it can cross processes and be stored."""

from dataclasses import dataclass, field

from autoplace.hardware.machine import Machine
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload


@dataclass(frozen=True)
class MeasureSettings:
    """How long and how often a placement is measured."""

    min_repeats: int = 3
    max_repeats: int = 10
    max_relative_spread: float = 0.05
    """Repeats stop once (high - low) / median of both objectives is at most this."""
    time_limit_s: float = 300.0
    """For one whole trial, load included; then the worker's process group is killed."""
    quality: bool = True
    quality_tokens: int = 64
    seed: int = 0


@dataclass(frozen=True)
class TrialRequest:
    """One trial: a model, the body of a rule file, and what it runs under."""

    model_path: str
    rules: str
    """The body of the rule file, exactly as it would be exported."""
    engine: str
    machine: Machine
    workload: Workload
    settings: RunSettings
    dtype: str = "bfloat16"
    measure: MeasureSettings = field(default_factory=MeasureSettings)
