"""What a worker is told: pure data, so that it can cross processes and be stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplace.bench.llama_cpp.tools import Tools
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.hardware.machine import Machine
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload


@dataclass(frozen=True)
class MeasureSettings:
    """How long and how often a placement is measured, and what makes the numbers invalid."""

    min_repeats: int = 3
    max_repeats: int = 10
    max_relative_spread: float = 0.05
    """Repeats stop once the middle half of both objectives spans at most this, over the median."""
    time_limit_s: float = 300.0
    """For one whole trial, load included; then the worker's process group is killed."""
    quality: bool = True
    quality_tokens: int = 64
    seed: int = 0
    unstable_spread: float = 1.0
    """A middle half wider than this after the last repeat is no number: `unstable`."""
    max_wait_share: float = 0.5
    """`contended`: our threads waited for a CPU this share of the time they could have run, …"""
    max_other_share: float = 0.25
    """… and other processes took this share of the host's CPU time. Both must be exceeded."""
    min_resident_share: float = 0.95
    """`cold`: less of the memory-mapped host weights than this is in the page cache."""
    by_role: bool = False
    """Find out where a decoded token's time goes, in further, untimed steps."""


@dataclass(frozen=True)
class LlamaCppRun:
    """How llama.cpp is run: with which arguments, and by which of its programs."""

    args: LlamaCppArgs
    tools: Tools
    predicted_bytes: Mapping[str, int] = field(default_factory=dict)
    """Peak by device, as it was planned."""


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
    cuda_graphs: str = "auto"
    """One of `placement.settings.CUDA_GRAPHS`."""
    interleave: str = "auto"
    """One of `placement.settings.INTERLEAVE`."""
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    llama_cpp: LlamaCppRun | None = None
    """For engine `llama.cpp`, which has arguments in place of rules."""
