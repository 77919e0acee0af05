"""What a trial measures, and how a trial can end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from autoplace.hardware.machine import Machine


class Basis(Enum):
    """Where a figure comes from. Never mixed."""

    MEASURED = "measured"
    EMULATED = "emulated"
    """Really run, on devices that are budgets in host memory: says nothing of a GPU's speed."""
    PREDICTED = "predicted"

    @classmethod
    def of(cls, machine: Machine) -> "Basis":
        """Of what is really run on it."""
        return cls.EMULATED if machine.emulated else cls.MEASURED


class Status(Enum):
    """How a trial ended."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    NOT_FINITE = "not_finite"
    """NaN, infinite or constant logits."""
    IMPLAUSIBLE = "implausible"
    """A rate that the machine cannot have."""
    CONTENDED = "contended"
    """Something else was using the machine."""
    COLD = "cold"
    """Host weights were not in the page cache."""
    UNSTABLE = "unstable"
    """The spread between repeats stayed too wide."""
    REFUSED = "refused"
    """The engine cannot run this placement: a fault of the rule file, or of ours."""


@dataclass(frozen=True)
class Spread:
    """Median of repeats, with the extremes."""

    median: float
    low: float
    high: float
    n: int

    @property
    def relative(self) -> float:
        return (self.high - self.low) / self.median if self.median else float("inf")


@dataclass(frozen=True)
class Quality:
    """Logits against the reference operators on fixed tokens."""

    mean_kl: float
    """Nats."""
    top1_agreement: float
    num_positions: int


@dataclass(frozen=True)
class DeviceBytes:
    """What the ledger and, in its own run, the driver or kernel saw on one device."""

    weights: int
    kv_cache: int
    workspace: int
    peak: int
    """Of all that was declared at one time, load peaks included."""


@dataclass(frozen=True)
class Metrics:
    """The numbers of a good trial."""

    decode_tok_per_s: Spread
    prefill_latency_s: Spread
    """Seconds from the prompt's tokens to the first output token's logits."""
    prefill_tok_per_s: float
    bytes_by_device: Mapping[str, DeviceBytes]
    quality: Quality | None = None
    load_s: float = 0.0
    bytes_per_token: int = 0
    """Weight and cache bytes that one decoded token reads, over all devices."""
    role_seconds: Mapping[str, float] = field(default_factory=dict)
    """Of one decoded token, in steps of their own (`bench.roles`); empty where not asked for."""


@dataclass(frozen=True)
class Outcome:
    """How one trial ended: a status with a reason, and numbers only where they are valid."""

    status: Status
    basis: Basis
    reason: str = ""
    metrics: Metrics | None = None
    out_of_memory_device: str | None = None
    out_of_memory_bytes: int | None = None
    """Bytes that the failed allocation went over the budget."""
    environment: Mapping[str, str | int | float] = field(default_factory=dict)
    """Threads, clocks, load, page-cache residence: what the measurement ran under."""

    @classmethod
    def out_of_memory(
        cls,
        device: str,
        reason: str,
        basis: Basis,
        *,
        over_bytes: int | None = None,
        environment: Mapping[str, str | int | float] | None = None,
    ) -> "Outcome":
        """Of a trial that `device` had no room for; `over_bytes`: over its budget, where known."""
        return cls(
            Status.OUT_OF_MEMORY,
            basis,
            reason,
            out_of_memory_device=device,
            out_of_memory_bytes=over_bytes,
            environment=environment or {},
        )
