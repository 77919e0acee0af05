"""Many placements at once: a placement is a row of option numbers, one a layer.

P placements, L layers, O options of a layer, D devices, C twice the number of parts: the seconds
of decode by part, then those of prefill.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoplace.predict.costs import PARTS

Floats = NDArray[np.float64]
Codes = NDArray[np.integer]
BLOCK_VALUES = 1 << 19
"""Counts that are held at a time: few enough to stay in a cache."""


@dataclass(frozen=True)
class Batch:
    """Predictions of P placements."""

    decode_s: Floats
    """[P, parts]"""
    prefill_s: Floats
    """[P, parts]"""

    @property
    def decode_tok_per_s(self) -> Floats:
        rates: Floats = 1 / self.decode_s.sum(1)
        return rates

    @property
    def prefill_latency_s(self) -> Floats:
        seconds: Floats = self.prefill_s.sum(1)
        return seconds


@dataclass(frozen=True)
class LatencyTable:
    """Costs of one model, machine, workload and settings."""

    layers: Floats
    """[L, O, C]"""
    devices: Codes
    """[O]: number of the device that an option's layer is on."""
    breaks_graph: NDArray[np.bool_]
    """[L, O]: whether a layer has experts on a GPU under the option."""
    hops: Floats
    """[D, D, C]"""
    heads: Floats
    """[H, D, C]: of lm_head under a choice, behind a last layer on a device."""
    launches: Floats
    """[D, C]: of one layer where CUDA graphs can hide them; zero where nothing is hidden."""

    def predict(self, codes: Codes, heads: Codes) -> Batch:
        """`codes` [P, L]: the option of each layer; `heads` [P]: the choice of lm_head.

        Layers with the same costs are counted by option, and counts are multiplied by costs.
        """
        size = max(1, BLOCK_VALUES // max(len(self._kind_costs), self.hops.shape[0] ** 2))
        blocks = [
            self._block(codes[start : start + size], heads[start : start + size])
            for start in range(0, len(codes), size)
        ]
        total = np.concatenate(blocks) if blocks else np.zeros((0, 2 * len(PARTS)))
        return Batch(total[:, : len(PARTS)], total[:, len(PARTS) :])

    def _block(self, codes: Codes, heads: Codes) -> Floats:
        """[P, C]"""
        on = self.devices[codes]  # [P, L]
        total: Floats = self.heads[heads, on[:, -1]]
        total += _counts(self._kinds * self.layers.shape[1] + codes, len(self._kind_costs)) @ (
            self._kind_costs
        )
        num_devices = self.hops.shape[0]
        if num_devices > 1:
            pairs = _counts(on[:, :-1] * num_devices + on[:, 1:], num_devices**2)
            total += pairs @ self.hops.reshape(num_devices**2, -1)
        if self.launches.any():
            graphless = np.any(self.breaks_graph[np.arange(codes.shape[1]), codes], axis=1)
            launches = _counts(on, num_devices) @ self.launches
            launches[:, : len(PARTS)] *= np.reshape(graphless, (-1, 1))
            total += launches
        return total

    @cached_property
    def _kinds(self) -> Codes:
        """[L]: number of the first layer with the same costs, counted without gaps."""
        return self._distinct[1]

    @cached_property
    def _kind_costs(self) -> Floats:
        """[kinds · O, C]"""
        kinds = self._distinct[0]
        return kinds.reshape(-1, kinds.shape[-1])

    @cached_property
    def _distinct(self) -> tuple[Floats, Codes]:
        kinds, inverse = np.unique(self.layers, axis=0, return_inverse=True)
        return kinds, np.reshape(inverse, -1)


def _counts(numbers: Codes, most: int) -> Floats:
    """How often each of 0 … most - 1 stands in each row of [P, L]: [P, most]."""
    rows = np.arange(len(numbers))[:, None] * most
    counts = np.bincount((numbers + rows).ravel(), minlength=len(numbers) * most)
    return counts.reshape(len(numbers), most).astype(float)
