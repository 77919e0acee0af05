"""Placements with their predicted time, and the front of many of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.predict.latency import Prediction

Overrun = Callable[[Placement, RunSettings], Mapping[str, int]]
"""Bytes over the budget per device, negative where there is room: `MemoryPlan.overrun_bytes`."""


@dataclass(frozen=True)
class Predicted:
    """A placement with its predicted time."""

    placement: Placement
    settings: RunSettings
    prediction: Prediction


@dataclass(frozen=True)
class Solved:
    """What solving found; all of it fits."""

    front: tuple[Predicted, ...]
    """No other is better in both; fastest decode first."""
    pool: tuple[Predicted, ...]
    """Everything that was made and fits, the least seconds a request first."""
    bound_s: float
    """No placement takes less for a request of the workload. Infinite where nothing can fit."""

    @property
    def pick(self) -> Predicted | None:
        return self.pool[0] if self.pool else None


def front_of(pool: Sequence[Predicted]) -> list[Predicted]:
    """Those that no other beats in both decode rate and prefill latency, fastest decode first."""
    front: list[Predicted] = []
    for one in sorted(
        pool, key=lambda p: (-p.prediction.decode_tok_per_s, p.prediction.prefill_latency_s)
    ):
        latest = one.prediction.prefill_latency_s
        if not front or latest < front[-1].prediction.prefill_latency_s * (1 - 1e-9):
            front.append(one)
    return front
