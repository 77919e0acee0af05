"""How fast the host reads and multiplies by each operator, by number of threads.

Without a probe: the machine's bandwidth and flops with cautious efficiencies. With one: what was
measured here at the model's shapes, inside a layer as the engine runs it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Machine
from autoplace.hardware.parts import FLOPS_PER_CORE

FAMILIES = ("blocks", "marlin4", "marlin8", "dense")
"""How weights are stored: GGUF blocks, packed in 4 or 8 bits, plain in the engine's dtype."""
ROUGHLY = {"head": "linear"}
"""Kind of operator → the kind whose rate stands for one that was not measured."""
COMPUTE_EFFICIENCY = 0.5
CORE_BYTES_PER_S = {"blocks": 6e9, "marlin4": 6e9, "marlin8": 8e9, "dense": 10e9}
"""Of weights, that one core with vectors of 256 bit gets through at batch 1: what compute allows
beside bandwidth. With the flops of a core it grows as their root: 1.4 times on a Zen 4."""
NO_BF16 = 0.45
"""Share of a host's sustained flops that plain weights reach at prefill if it has no instructions
for bf16: 21 of 48 GFLOP/s of a Zen 1's core."""
HALF_SATURATES = 2.0
"""Half of the cores saturate the memory."""

Curve = Mapping[int, float]
"""Number of threads → a rate."""
Surface = Mapping[int, Mapping[float, float]]
"""Number of threads → rows that meet one matrix → a figure.

Rows are tokens for a linear and for what is around the operators, tokens an expert for experts.
"""


def family_of(operator: str, num_bits: int | None) -> str:
    """`KExpertsMarlin` with 4 bits → `marlin4`."""
    if operator.endswith("Marlin"):
        return f"marlin{num_bits or 4}"
    return "dense" if operator.endswith("Torch") else "blocks"


@dataclass(frozen=True)
class HostRates:
    """Measured rates. A family that was not measured has its starting values."""

    bandwidth_bytes_per_s: Curve = field(default_factory=dict)
    decode_bytes_per_s: Mapping[str, Curve] = field(default_factory=dict)
    """`experts blocks` → threads → stored bytes a second at batch 1; so of `linear` and `head`."""
    prefill_flops: Mapping[str, Surface] = field(default_factory=dict)
    """`experts blocks` → threads → rows → 2 · rows · weights a second."""
    layer_s: Surface = field(default_factory=dict)
    """Threads → tokens → seconds around the operators of one layer that runs on the host, with all
    that no rule replaces: norms, the router, kv_b."""
    token_s: Curve = field(default_factory=dict)
    """Threads → seconds of one token outside of the layers and lm_head: the embedding, the last
    norm, the choice of the next token."""


class HostSpeed:
    """The rates of one machine for one engine's efficiency."""

    def __init__(self, machine: Machine, rates: HostRates, *, efficiency: float) -> None:
        host = machine.host
        if not rates.bandwidth_bytes_per_s and host.bandwidth_bytes_per_s <= 0:
            raise AutoplaceError(
                f"{machine.name} has no bandwidth for the host, which `probe` measures"
            )
        self._machine = machine
        self._rates = rates
        self._efficiency = efficiency

    def bandwidth(self, num_threads: int) -> float:
        """Bytes a second that so many threads read."""
        if self._rates.bandwidth_bytes_per_s:
            return at(self._rates.bandwidth_bytes_per_s, num_threads)
        host, cores = self._machine.host, self._machine.num_cores
        share = min(1.0, HALF_SATURATES * num_threads / cores)
        return self._efficiency * host.bandwidth_bytes_per_s * share

    def decode(self, kind: str, family: str, num_threads: int) -> float:
        """Stored bytes a second at batch 1. A head that was never timed is read as linears are."""
        known = self._rates.decode_bytes_per_s
        measured = known.get(f"{kind} {family}") or known.get(f"{ROUGHLY.get(kind)} {family}")
        if measured:
            return at(measured, num_threads)
        width = self._machine.host.flops / self._machine.num_cores / FLOPS_PER_CORE
        core_rate = CORE_BYTES_PER_S[family] * math.sqrt(width)
        return min(self.bandwidth(num_threads), num_threads * core_rate)

    def was_measured(self, kind: str, family: str) -> bool:
        """Whether prefill rates by rows are known."""
        return bool(self._rates.prefill_flops.get(f"{kind} {family}"))

    def prefill(self, kind: str, family: str, num_threads: int, rows: float = math.inf) -> float:
        """Floating-point operations a second while so many rows meet each matrix."""
        measured = self._rates.prefill_flops.get(f"{kind} {family}")
        if measured:
            return at({t: at_rows(curve, rows) for t, curve in measured.items()}, num_threads)
        host = self._machine.host
        slow = NO_BF16 if family == "dense" and not host.has_bf16 else 1.0
        share = min(1.0, num_threads / self._machine.num_cores)
        return COMPUTE_EFFICIENCY * slow * host.flops * share

    @property
    def knows_layers(self) -> bool:
        """Whether the time around operators was measured, with what no rule replaces in it."""
        return bool(self._rates.layer_s)

    def layer_s(self, num_threads: int, tokens: int) -> float | None:
        """Seconds around the operators of a layer on so many tokens; None if never measured."""
        measured = self._rates.layer_s
        if not measured:
            return None
        curve = {t: along(points, tokens) for t, points in measured.items()}
        return at(curve, num_threads, below=curve[min(curve)])

    def token_s(self, num_threads: int) -> float | None:
        """Seconds of one token outside of the layers and lm_head; None if never measured."""
        measured = self._rates.token_s
        return at(measured, num_threads, below=measured[min(measured)]) if measured else None


def at(curve: Curve, num_threads: int, *, below: float | None = None) -> float:
    """A measured curve between and beyond its points: straight between, constant above.

    Below the first it is in proportion to the threads, or `below`.
    """
    if num_threads in curve:
        return curve[num_threads]
    known = sorted(curve)
    if num_threads <= known[0]:
        return curve[known[0]] * num_threads / known[0] if below is None else below
    for low, high in pairwise(known):
        if num_threads <= high:
            part = (num_threads - low) / (high - low)
            return curve[low] + part * (curve[high] - curve[low])
    return curve[known[-1]]


def at_rows(curve: Mapping[float, float], rows: float) -> float:
    """A rate by rows: a power law between the points, constant beyond them."""
    known = sorted(curve)
    for low, high in pairwise(known):
        if low <= rows <= high:
            part = math.log(rows / low) / math.log(high / low)
            return float(curve[low] * (curve[high] / curve[low]) ** part)
    return curve[known[0] if rows < known[0] else known[-1]]


def along(curve: Mapping[float, float], tokens: float) -> float:
    """Seconds by tokens: straight between the points, and on from the last two."""
    known = sorted(curve)
    if tokens <= known[0] or len(known) == 1:
        return curve[known[0]]
    low, high = next(((a, b) for a, b in pairwise(known) if tokens <= b), (known[-2], known[-1]))
    slope = max(0.0, (curve[high] - curve[low]) / (high - low))
    return curve[low] + slope * (tokens - low)
