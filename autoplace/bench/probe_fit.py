"""Corrects rates of single operators by passes of the sample, where they stand in whole layers.

For every number of threads and every length of a pass the sums that the model predicts are fitted
to what was timed, with a factor for each kind of operator, for what is around them, and for the
attention. The factors go into the rates.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from autoplace.bench.probe_sample import DECODED, Timed
from autoplace.hardware.machine import Machine
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.predict.calibrate import fit
from autoplace.predict.calibration import Calibration
from autoplace.predict.latency import LatencyModel
from autoplace.predict.rates import FAMILIES, Curve, HostRates, Surface, along, at_rows
from autoplace.workload import Workload

LAYER = "layer"
LAYER_FREEDOM, LINEAR_FREEDOM, OPERATOR_FREEDOM, SCALE_FREEDOM = 2.0, 1.0, 0.5, 0.02
"""Deviations of log(factor). What is around operators was only guessed. Small linears are timed
with a call each, which at one token can take longer than they do, and which a layer has not."""
CACHE = "cache host"
ATTENTION = "attention host"
TOKEN = "token host"


@dataclass(frozen=True)
class Point:
    """Passes of one length under one number of threads, and the factors that explain them."""

    num_threads: int
    tokens: int
    factors: Mapping[str, float]
    """`linear blocks`, `experts dense`, `layer`, … → its seconds over those predicted."""


def correct(calibration: Calibration, machine: Machine, timed: Sequence[Timed]) -> Calibration:
    """The calibration with rates as they are inside layers; the same one without passes.

    First what has no rate by threads gets a factor of its own, then all else is fitted around it.
    What no pass had in it keeps the rate that it had alone.
    """
    if not timed:
        return calibration
    points = _points(calibration, machine, timed, settled={TOKEN})
    common = replace(
        calibration,
        decode=_typical([point for point in points if point.tokens == 1], CACHE),
        prefill=_typical([point for point in points if point.tokens > 1], ATTENTION),
    )
    points = _points(common, machine, timed, settled={TOKEN, *common.decode, *common.prefill})
    moe = timed[0].spec.geometry.moe
    share = moe.top_k / moe.num_experts if moe else 0.0
    return replace(common, rates=_corrected(calibration.rates, points, share))


def _points(
    calibration: Calibration,
    machine: Machine,
    timed: Sequence[Timed],
    *,
    settled: Collection[str],
) -> list[Point]:
    groups: dict[tuple[int, int], list[Timed]] = defaultdict(list)
    for one in quickest(timed):
        groups[one.num_threads, one.tokens].append(one)
    return [
        Point(*key, _factors(calibration, machine, passes, settled))
        for key, passes in groups.items()
    ]


def quickest(timed: Sequence[Timed]) -> list[Timed]:
    """Of passes that were timed in several rounds the quickest: others only make them slower."""
    best: dict[tuple[Placement, int, int, int], Timed] = {}
    for one in timed:
        key = (one.placement, one.num_threads, one.tokens, one.position)
        if key not in best or one.seconds.median < best[key].seconds.median:
            best[key] = one
    return list(best.values())


def _factors(
    calibration: Calibration, machine: Machine, passes: Sequence[Timed], settled: Collection[str]
) -> Mapping[str, float]:
    """By what has a rate of its own; `settled` are cost keys that are not to be bent any more."""
    costs = []
    for one in passes:
        prompt = one.position + DECODED // 2 if one.tokens == 1 else one.tokens
        workload = Workload("sample", prompt, 1, prompt + 1)
        model = LatencyModel(one.spec, machine, workload, calibration=calibration)
        by_phase = model.by_key(one.placement, RunSettings(one.num_threads, one.tokens))
        costs.append(_merged(by_phase[0 if one.tokens == 1 else 1], decode=one.tokens == 1))
    seconds = [one.seconds.median for one in passes]
    keys = {key for cost in costs for key in cost}
    linears = [key for key in keys if key.startswith("linear ") and passes[0].tokens == 1]
    freedom = dict.fromkeys(keys, OPERATOR_FREEDOM) | dict.fromkeys(linears, LINEAR_FREEDOM)
    return fit(
        costs,
        seconds,
        freedom=freedom | {LAYER: LAYER_FREEDOM} | dict.fromkeys(settled, SCALE_FREEDOM),
        scale_freedom=SCALE_FREEDOM,
        suspicious_from=float("inf"),
    ).factors


def _merged(costs: Mapping[str, float], *, decode: bool) -> Mapping[str, float]:
    """By what has a rate of its own; lm_head at prefill has none."""
    merged: dict[str, float] = defaultdict(float)
    for key, seconds in costs.items():
        what, *rest = key.split()
        if "gpu" in rest:
            merged[key] += seconds
        elif what == "dense":
            merged[f"linear {rest[-1]}"] += seconds
        elif what == "head" and decode:
            merged[f"head {rest[-1]}"] += seconds
        elif what == "experts":
            merged[f"experts {rest[-1]}"] += seconds
        else:
            merged[LAYER if what == "launch" else key] += seconds
    return merged


def _typical(points: Sequence[Point], key: str) -> dict[str, float]:
    """Factors that no rate by threads can hold: of one key of the host, and of all on GPUs."""
    found: dict[str, list[float]] = defaultdict(list)
    for point in points:
        for name, factor in point.factors.items():
            if name == key or " gpu" in name:
                found[name].append(factor)
    return {name: median(factors) for name, factors in sorted(found.items())}


def _corrected(rates: HostRates, points: Sequence[Point], share: float) -> HostRates:
    decode = dict(rates.decode_bytes_per_s)
    prefill = dict(rates.prefill_flops)
    for kind, rows_a_token in (("linear", 1.0), ("experts", share), ("head", 1.0)):
        for name in (f"{kind} {family}" for family in FAMILIES):
            if name in decode:
                decode[name] = _faster(decode[name], name, points)
            if name in prefill:
                prefill[name] = _surface(prefill[name], name, points, rows_a_token)
    return replace(
        rates,
        decode_bytes_per_s=decode,
        prefill_flops=prefill,
        layer_s=_layer_surface(rates.layer_s, points),
    )


def _faster(curve: Curve, name: str, points: Sequence[Point]) -> Curve:
    factors = {p.num_threads: p.factors.get(name, 1.0) for p in points if p.tokens == 1}
    return {threads: rate / factors.get(threads, 1.0) for threads, rate in curve.items()}


def _surface(surface: Surface, name: str, points: Sequence[Point], rows_a_token: float) -> Surface:
    """Rates at the rows that passes had; beyond them the shape of the operator alone."""
    corrected = {}
    for threads, curve in surface.items():
        factors = {
            p.tokens * rows_a_token: p.factors[name]
            for p in points
            if p.num_threads == threads and name in p.factors
        }
        found = {rows: at_rows(curve, rows) / factor for rows, factor in factors.items()}
        if found:
            last = max(found)
            found |= {r: rate / factors[last] for r, rate in curve.items() if r > last}
        corrected[threads] = found or dict(curve)
    return corrected


def _layer_surface(surface: Surface, points: Sequence[Point]) -> Surface:
    corrected = {}
    for threads, curve in surface.items():
        factors = {p.tokens: p.factors[LAYER] for p in points if p.num_threads == threads}
        found = {float(n): along(curve, n) * factor for n, factor in factors.items()}
        corrected[threads] = found or dict(curve)
    return corrected
