"""One seed's machine: what it does with a placement, and how good a set of placements is there."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulated.grid import Floats, Grid

MEMORY_ERROR = 0.01


class Truth:
    """One seed's machine: the model with other factors, noise, and memory that is a bit off."""

    def __init__(self, grid: Grid, *, bias: float, noise: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._noise, self._rng = noise, rng
        self.decode_s = self._biased(grid, grid.decode, bias)
        self.prefill_s = self._biased(grid, grid.prefill, bias)
        error = rng.normal(0, MEMORY_ERROR, grid.peak_bytes.shape)
        self.fits: NDArray[np.bool_] = np.all(
            grid.over_bytes + error * grid.peak_bytes <= 0, axis=1
        )
        self.worst = (1 / self.decode_s[self.fits].max(), self.prefill_s[self.fits].max())
        self.all = self.hypervolume(np.nonzero(self.fits)[0])

    def _biased(self, grid: Grid, costs: Floats, bias: float) -> Floats:
        by_key = np.exp(self._rng.normal(0, bias / 2**0.5, costs.shape[1]))
        deviation = bias / 2**0.5 / len(grid.axes) ** 0.5
        by_value = self._rng.normal(0, deviation, grid.one_hot.shape[1])
        seconds: Floats = (costs @ by_key) * np.exp(grid.one_hot @ by_value)
        return seconds

    def run(self, index: int) -> tuple[float, float] | None:
        """Seconds of a token and of the prefill, or None: out of memory."""
        if not self.fits[index]:
            return None
        noise = np.exp(self._rng.normal(0, self._noise, 2))
        return float(self.decode_s[index] * noise[0]), float(self.prefill_s[index] * noise[1])

    def hypervolume(self, indices: Sequence[int] | NDArray[np.integer]) -> float:
        """True one of what was run: rates over that of the slowest, latencies below the longest."""
        points = sorted((1 / self.decode_s[i], self.prefill_s[i]) for i in indices)
        volume, before = 0.0, self.worst[1]
        for rate, latency in reversed(points):
            if latency < before:
                volume += (rate - self.worst[0]) * (before - latency)
                before = latency
        return float(volume)
