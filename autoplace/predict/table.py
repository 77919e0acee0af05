"""Many placements at once: a placement is a row of option numbers, one a layer.

P placements, L layers, O options of a layer, D devices, C twice the number of parts: the seconds
of decode by part, then those of prefill.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplace.predict.costs import PARTS

Floats = NDArray[np.float64]
Codes = NDArray[np.integer]


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
        """`codes` [P, L]: the option of each layer; `heads` [P]: the choice of lm_head."""
        num_parts = len(PARTS)
        on = self.devices[codes]  # [P, L]
        total = self.heads[heads, on[:, -1]]  # [P, C]
        for layer, costs in enumerate(self.layers):
            total += costs.take(codes[:, layer], axis=0)
        self._add_hops(total, on)
        if self.launches.any():
            graphless = np.any(self.breaks_graph[np.arange(codes.shape[1]), codes], axis=1)
            launches = self.launches[on].sum(1)  # [P, C]
            launches[:, :num_parts] *= np.reshape(graphless, (-1, 1))
            total += launches
        return Batch(total[:, :num_parts], total[:, num_parts:])

    def _add_hops(self, total: Floats, on: Codes) -> None:
        rows, layers = np.nonzero(on[:, 1:] != on[:, :-1])
        if len(rows):
            np.add.at(total, rows, self.hops[on[rows, layers], on[rows, layers + 1]])
