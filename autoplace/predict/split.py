"""The best contiguous split under prices: dynamic programming over GPUs, exact for its prices.

Every GPU takes a range of layers, a combination of operators, and experts of its own layers or of
others'. What a GPU may hold couples experts to layers; the number of expert layers on all GPUs
couples the GPUs, and a price `mu` for each of them uncouples those again (Lagrange). For every
price the minimum is a lower bound of what any placement costs, and its ranges are a candidate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoplace.hardware.machine import Device
from autoplace.predict.choices import Choices, Combination, Floats, Head, HostExperts

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """What one device takes."""

    device: str
    start: int
    end: int
    combination: int
    num_experts: int
    head: int | None = None
    """Index of lm_head's choice if it is here."""


@dataclass(frozen=True)
class Split:
    """A minimum for one price."""

    parts: tuple[Part, ...]
    value: float
    """Without what stays on the host; the price of the experts is taken off."""

    @property
    def num_experts(self) -> int:
        return sum(part.num_experts for part in self.parts)


@dataclass(frozen=True)
class _Ranges:
    """Best value [L + 1, L + 1] of a device for every range (start, end), and how it is reached."""

    value: Floats
    combination: Ints
    num_experts: Ints
    head: Ints


@dataclass(frozen=True)
class _Step:
    """One device of the dynamic programme: for every end, the best start of each kind."""

    plain: _Ranges
    headed: _Ranges
    from_without: Ints
    """lm_head is not placed yet."""
    from_with: Ints
    """It was placed before."""
    from_here: Ints
    """It is placed here."""
    placed_before: NDArray[np.bool_]
    """Whether before is better than here."""


class Splitter:
    """Splits for one weighting of decode and prefill, under given budgets."""

    def __init__(
        self,
        choices: Choices,
        weights: tuple[float, float],
        budgets: Mapping[str, float],
        *,
        gpu_experts: bool = True,
    ) -> None:
        self._choices = choices
        self.weights = np.array(weights)
        self._budgets = budgets
        self._gpu_experts = gpu_experts
        self.num_moe = int(choices.moe.sum())
        self._hop = self._weighted(choices.hop) if len(choices.devices) > 1 else 0.0
        self.away = self._weighted(choices.away) if len(choices.devices) > 1 else np.inf
        count = np.arange(choices.num_layers + 1)
        self._is_range = count[:, None] <= count[None, :]
        self._is_empty = count[:, None] == count[None, :]
        moe = np.concatenate([[0], np.cumsum(choices.moe)])
        self._own = moe[None, :] - moe[:, None]

    def solve(self, mu: float) -> Split | None:
        """The split of least value if an expert layer on a GPU is worth `mu`; None if none fits."""
        devices, last = self._choices.devices, self._choices.num_layers
        without, with_head = np.full(last + 1, np.inf), np.full(last + 1, np.inf)
        without[0] = 0.0
        host = self._head_on_host
        if host is not None:
            with_head[0] = host
        known: dict[object, tuple[_Ranges, _Ranges]] = {}
        steps: list[_Step] = []
        for device in devices:
            key = self._key(device)
            if key not in known:
                known[key] = (
                    self._ranges(device, mu, head=False),
                    self._ranges(device, mu, head=True),
                )
            plain, headed = known[key]
            a = without[:, None] + plain.value
            b = with_head[:, None] + plain.value
            c = without[:, None] + headed.value
            before = b.min(0) <= c.min(0)
            steps.append(_Step(plain, headed, a.argmin(0), b.argmin(0), c.argmin(0), before))
            without, with_head = a.min(0), np.minimum(b.min(0), c.min(0))
        if not np.isfinite(with_head[last]):
            return None
        return self._traced(steps, float(with_head[last]))

    def _traced(self, steps: Sequence[_Step], value: float) -> Split:
        """Follow the choices back from the last device to the first."""
        parts: list[Part] = []
        end, has_head = self._choices.num_layers, True
        for device, step in zip(reversed(self._choices.devices), reversed(steps), strict=True):
            here = has_head and not step.placed_before[end]
            ranges = step.headed if here else step.plain
            before = step.from_with if has_head else step.from_without
            start = int((step.from_here if here else before)[end])
            parts.append(
                Part(
                    device.name,
                    start,
                    end,
                    int(ranges.combination[start, end]),
                    int(ranges.num_experts[start, end]),
                    int(ranges.head[start, end]) if here else None,
                )
            )
            end, has_head = start, has_head and not here
        return Split(tuple(reversed(parts)), value)

    def host_value(self, host: HostExperts, budget: float) -> tuple[Floats, int]:
        """[moe + 1]: cost of the experts left on the host when K layers are on GPUs, the dearest
        gone; and the least K that the host's budget allows (moe + 1 if none)."""
        costs = np.sort((host.costs @ self.weights)[self._choices.moe])
        values = np.concatenate([[0.0], np.cumsum(costs)])[::-1]
        n_bytes = np.concatenate([[0.0], np.cumsum(np.sort(host.n_bytes[self._choices.moe]))])[::-1]
        fitting = np.nonzero(n_bytes <= budget)[0]
        return values, int(fitting[0]) if len(fitting) else self.num_moe + 1

    def layer_values(self, host: HostExperts) -> Floats:
        """[L]: cost of each layer's experts on the host."""
        values: Floats = host.costs @ self.weights
        return values

    @cached_property
    def least_expert(self) -> float:
        """Cost of one expert layer on the GPU that is best at it."""
        return min(
            (
                self._weighted(combination.expert)
                for device in self._choices.devices
                for combination in self._choices.combinations[device.name]
                if combination.experts is not None
            ),
            default=np.inf,
        )

    def expert_s(self, part: Part) -> float:
        """Cost of one expert layer on a part's device; the weighted seconds."""
        combination = self._choices.combinations[part.device][part.combination]
        return self._weighted(combination.expert) if combination.experts else 0.0

    def _weighted(self, pair: Floats) -> float:
        return float(pair @ self.weights)

    @cached_property
    def _head_on_host(self) -> float | None:
        """lm_head on the host behind layers on a GPU."""
        host = self._choices.space.machine.host.name
        heads = self._choices.heads.get(host, ())
        if not self._choices.devices[0].is_gpu or not heads:
            return None
        return min(self._weighted(head.costs) for head in heads)

    def _key(self, device: Device) -> object:
        return (
            self._budgets[device.name],
            device.model,
            device.bandwidth_bytes_per_s,
            device.flops,
            device.compute_capability,
        )

    def _ranges(self, device: Device, mu: float, *, head: bool) -> _Ranges:
        """The best combination, and head, of every range."""
        found = [
            self._one(device, combination, mu, here)
            for combination in self._choices.combinations[device.name]
            for here in (self._choices.heads[device.name] if head else (None,))
        ]
        num_heads = len(self._choices.heads[device.name]) if head else 1
        if not found:
            empty = np.zeros_like(self._own)
            return _Ranges(np.full(self._own.shape, np.inf), empty, empty, empty)
        values = np.stack([value for value, _ in found])
        counts = np.stack([count for _, count in found])
        best = values.argmin(0)
        pick = best[None]
        return _Ranges(
            np.take_along_axis(values, pick, 0)[0],
            best // num_heads,
            np.take_along_axis(counts, pick, 0)[0],
            best % num_heads,
        )

    def _one(
        self, device: Device, combination: Combination, mu: float, head: Head | None
    ) -> tuple[Floats, Ints]:
        """Value and number of expert layers of every range under one combination."""
        cost = np.concatenate([[0.0], np.cumsum(combination.base @ self.weights)])
        n_bytes = np.concatenate([[0.0], np.cumsum(combination.base_bytes)])
        free = self._budgets[device.name] - (n_bytes[None, :] - n_bytes[:, None])
        value = cost[None, :] - cost[:, None]
        if head is not None:
            free = free - head.n_bytes
            value = value + self._weighted(head.costs)
            last = self._choices.num_layers
            value[:, :last] += self._hop
            value[last, last] += self._hop
        value[1:] += np.where(self._is_empty[1:], 0.0, self._hop)
        count = np.zeros_like(self._own)
        if combination.experts is not None and self._gpu_experts:
            count, gain = self._experts(combination, free, mu)
            value = value - gain
        unused = self._is_empty & (count == 0) & (head is None)
        value[~self._is_range | ((free < 0) & ~unused)] = np.inf
        return value, count

    def _experts(self, combination: Combination, free: Floats, mu: float) -> tuple[Ints, Floats]:
        """As many as pay at the price and have room: own layers first, then others'."""
        room = np.clip(free // combination.expert_bytes, 0, self.num_moe).astype(np.int64)
        gain_own = mu - self._weighted(combination.expert)
        gain_away = gain_own - self.away
        own = np.minimum(room, self._own) if gain_own > 0 else np.zeros_like(room)
        own = np.maximum(own, 0)
        away = room - own if gain_away > 0 else np.zeros_like(room)
        gain = own * max(gain_own, 0.0) + (away * gain_away if gain_away > 0 else 0.0)
        return own + away, gain
