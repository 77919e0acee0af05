"""Corrects the model by measured trials: bounded, drawn towards the start, robust to outliers.

A prediction is a sum of costs by key. Every key gets a factor, and all together one more, so that
log(predicted) meets log(measured); Huber's loss keeps one bad measurement from bending them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.predict.calibration import Calibration
from autoplace.predict.latency import LatencyModel

LARGEST_FACTOR = 4.0
"""Of a key, each way. What lies beyond is no correction but a mistake."""
LARGEST_SCALE = 10.0
"""Of all keys together: a shared or throttled host."""
NOISE = 0.05
"""Relative noise of a measurement; residuals of more than twice that count less."""
FREEDOM = 0.4
"""Standard deviation of log(factor) of a key around the start."""
SCALE_FREEDOM = 1.0
"""The same of the factor that all keys share."""
PROBED_FREEDOM, PROBED_SCALE_FREEDOM = 0.15, 0.1
"""The same where a probe ran whole layers: it is worth several runs of a busy machine."""
SUSPICIOUS = 3.0
LEAST_FOR_ERROR = 3
"""Trials before a leave-one-out error says anything."""
_STEPS = 40

Floats = NDArray[np.float64]
Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Observation:
    """One measured placement."""

    placement: Placement
    settings: RunSettings
    decode_s: float
    """Seconds of one token."""
    prefill_s: float
    name: str = ""
    """`trial 12`: what it is called where it is doubted."""


@dataclass(frozen=True)
class Fitted:
    """Factors by key, and what leaving out each observation in turn says of them."""

    factors: Mapping[str, float]
    errors: tuple[float, ...]
    """Relative errors, predicted over measured minus one, each without its own observation."""
    suspicious: Mapping[int, float]
    """Observation → how many times longer it took than the others say; none of these was fitted."""
    common: float = 1.0
    """How many times longer than predicted they took, all in all."""

    @property
    def error(self) -> float | None:
        """Mean of the absolute relative errors; None for too few observations."""
        if len(self.errors) < LEAST_FOR_ERROR:
            return None
        return float(np.mean(np.abs(self.errors)))


@dataclass(frozen=True)
class Refit:
    """A calibration out of trials, with its doubts."""

    calibration: Calibration
    decode: Fitted
    prefill: Fitted
    names: tuple[str, ...] = ()
    """Of the observations."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """What contradicts the model by over three times, with its likely cause."""
        return tuple(self._doubts())

    def _doubts(self) -> Iterator[str]:
        for phase, fitted in (("decode", self.decode), ("prefill", self.prefill)):
            for index, ratio in fitted.suspicious.items():
                yield (
                    f"{self.names[index]} took {ratio:.2g} times as long in {phase} as predicted, "
                    f"which is not learned from: {_cause(ratio)}"
                )
            if _is_far(fitted.common, SUSPICIOUS):
                yield (
                    f"all took about {fitted.common:.2g} times as long in {phase} as predicted, "
                    f"which is learned, since they agree: {_cause_of_all(fitted.common)}"
                )


def refit(model: LatencyModel, observations: Sequence[Observation]) -> Refit:
    """Correct the calibration that `model` has by what was measured."""
    pairs = [model.by_key(one.placement, one.settings) for one in observations]
    start = model.calibration
    decode = _fit(
        start, start.decode, [pair[0] for pair in pairs], [one.decode_s for one in observations]
    )
    prefill = _fit(
        start, start.prefill, [pair[1] for pair in pairs], [one.prefill_s for one in observations]
    )
    num_trials = start.num_trials + len(observations)
    calibration = replace(
        start,
        source=f"{start.source.split(' and ')[0]} and {num_trials} trials",
        decode=_times(start.decode, decode.factors),
        prefill=_times(start.prefill, prefill.factors),
        num_trials=num_trials,
        decode_error=start.decode_error if decode.error is None else decode.error,
        prefill_error=start.prefill_error if prefill.error is None else prefill.error,
    )
    names = tuple(one.name or f"measurement {i}" for i, one in enumerate(observations))
    return Refit(calibration, decode, prefill, names)


def _fit(
    start: Calibration,
    known: Mapping[str, float],
    costs: Sequence[Seconds],
    measured_s: Sequence[float],
) -> Fitted:
    """Trials against a start: what a probe has timed is bent less than what was only assumed."""
    if not start.rates.layer_s:
        return fit(costs, measured_s)
    keys = {key for cost in costs for key in cost}
    timed = {key for key in keys if "host" in key.split() or key in known}
    return fit(
        costs,
        measured_s,
        freedom=dict.fromkeys(timed, PROBED_FREEDOM),
        scale_freedom=PROBED_SCALE_FREEDOM if timed == keys else SCALE_FREEDOM,
    )


def fit(
    costs: Sequence[Seconds],
    measured_s: Sequence[float],
    *,
    freedom: float | Mapping[str, float] = FREEDOM,
    scale_freedom: float = SCALE_FREEDOM,
    suspicious_from: float = SUSPICIOUS,
) -> Fitted:
    """Factors that turn the sums of `costs` into `measured_s`, best by all that are plausible.

    `freedom`: of all keys, or by key, the rest having the usual one.
    """
    keys = sorted({key for cost in costs for key in cost})
    matrix = np.array([[cost.get(key, 0.0) for key in keys] for cost in costs])
    measured = np.array(measured_s, float)
    common = _common_ratio(matrix, measured)
    suspicious = _suspicious(matrix, measured / common, suspicious_from)
    kept = [i for i in range(len(measured)) if i not in suspicious]
    if not kept:
        return Fitted({}, (), suspicious, common)
    by_key = freedom if isinstance(freedom, Mapping) else dict.fromkeys(keys, freedom)
    deviations = np.array([*(by_key.get(key, FREEDOM) for key in keys), scale_freedom])
    factors = _factors(matrix[kept], measured[kept], deviations)
    errors = []
    for i in kept if len(kept) > 1 else []:
        others = [j for j in kept if j != i]
        without = _factors(matrix[others], measured[others], deviations)
        errors.append(float(matrix[i] @ without / measured[i] - 1))
    named = {key: float(factor) for key, factor in zip(keys, factors, strict=True)}
    return Fitted(named, tuple(errors), suspicious, common)


def _common_ratio(matrix: Floats, measured: Floats) -> float:
    """Of what was measured to what the costs sum up to; 1 where a single one would say it."""
    ratios = measured / matrix.sum(1)
    return float(np.exp(median(np.log(ratios)))) if len(ratios) > 1 else 1.0


def _suspicious(matrix: Floats, measured: Floats, limit: float) -> dict[int, float]:
    """Those that differ from the model by more than the limit."""
    ratios = measured / matrix.sum(1)
    return {i: float(ratio) for i, ratio in enumerate(ratios) if _is_far(ratio, limit)}


def _is_far(ratio: float, limit: float) -> bool:
    return not 1 / limit <= ratio <= limit


def _factors(matrix: Floats, measured: Floats, deviations: Floats) -> Floats:
    """Gauss-Newton on log residuals, reweighted; the last unknown is the common scale.

    What lies on its bound and would pass it stands still, so that the others settle around it.
    """
    num_keys = matrix.shape[1]
    precision = deviations**-2.0
    bounds = np.log(np.append(np.full(num_keys, LARGEST_FACTOR), LARGEST_SCALE))
    theta = np.zeros(num_keys + 1)
    start = np.median(np.log(measured / matrix.sum(1)))
    theta[-1] = np.clip(start, *np.minimum(bounds[-1], deviations[-1]) * np.array([-1, 1]))
    for _ in range(_STEPS):
        parts = matrix * np.exp(theta[:-1] + theta[-1])
        total = parts.sum(1)
        residual = np.log(measured / total)
        weight = np.minimum(1.0, 2 * NOISE / np.maximum(np.abs(residual), 1e-12)) / NOISE**2
        jacobian = np.column_stack([parts / total[:, None], np.ones(len(total))])
        normal = (jacobian.T * weight) @ jacobian + np.diag(precision)
        downhill = jacobian.T @ (weight * residual) - precision * theta
        free = (np.abs(theta) < bounds) | (downhill * theta < 0)
        step = np.zeros(len(theta))
        step[free] = np.linalg.solve(normal[np.ix_(free, free)], downhill[free])
        theta = np.clip(theta + np.clip(step, -0.7, 0.7), -bounds, bounds)
        if np.abs(step).max() < 1e-6:
            break
    factors: Floats = np.exp(theta[:-1] + theta[-1])
    return factors


def _times(start: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    """Factors on top of those that the model had; keys not seen take the typical correction."""
    typical = math.exp(float(np.mean(np.log(list(factors.values()))))) if factors else 1.0
    keys = {*start, *factors}
    return {key: start.get(key, 1.0) * factors.get(key, typical) for key in sorted(keys)}


def _cause(ratio: float) -> str:
    if ratio > 1:
        return "cold or swapped weights, a throttled clock, or others on the machine"
    return "weights found in a cache, or a bandwidth in the profile that is too low"


def _cause_of_all(ratio: float) -> str:
    """`probe` tells the machine from the profile."""
    if ratio > 1:
        return "the profile promises more than the machine has, or others were on it all the time"
    return "a bandwidth in the profile that is too low"
