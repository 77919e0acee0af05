"""Measures what the time model needs to know of this machine's CPU side, in under a minute."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Spread
from autoplace.bench.probe_rates import Figure, measure_rates
from autoplace.bench.threads import set_threads
from autoplace.bench.usage import Counters
from autoplace.errors import AutoplaceError
from autoplace.hardware.fingerprint import fingerprint
from autoplace.hardware.machine import Machine
from autoplace.models.backend import kernels as built_kernels
from autoplace.native import Kernels
from autoplace.placement.options import thread_choices
from autoplace.predict.calibration import (
    PROBED_DECODE_ERROR,
    PROBED_PREFILL_ERROR,
    Calibration,
)
from autoplace.predict.rates import HostRates
from autoplace.units import MIB

READ_BYTES = 256 * MIB
PREFILL_TOKENS = 128
SMALL_CALLS = 60
"""Small calls of torch around the operators of one layer, counted in the builtin engine's decode
of a DeepSeek layer."""


@dataclass(frozen=True)
class Probe:
    """What was measured, and the calibration that it makes."""

    figures: tuple[Figure, ...]
    calibration: Calibration
    seconds: float
    other_share: float
    """Of the host's CPU time, that other processes took meanwhile: more makes rates too low."""


def probe(
    spec: ModelSpec,
    machine: Machine,
    engine: str,
    *,
    time_limit_s: float = 60.0,
    point_limit_s: float = 1.0,
    on_figure: Callable[[Figure], None] = lambda figure: None,
) -> Probe:
    """Measure this machine at the shapes of a model. Raise `AutoplaceError` without kernels."""
    kernels = built_kernels()
    if kernels is None:
        raise AutoplaceError("probe measures the compiled kernels, and no C++ compiler is here")
    begin, before = time.monotonic(), Counters.now()
    threads = thread_choices(machine)
    figures: list[Figure] = []

    def note(figure: Figure) -> None:
        figures.append(figure)
        on_figure(figure)

    for num_threads in threads:
        note(read_bandwidth(kernels, num_threads))
    note(small_calls(spec, threads[-1]))
    note(hand_over(kernels, threads[-1]))
    families = ("blocks", "dense", *(("marlin4", "marlin8") if machine.emulated else ()))
    for figure in measure_rates(
        spec,
        kernels,
        families,
        threads,
        set_threads=set_threads,
        prefill_tokens=PREFILL_TOKENS,
        deadline_s=begin + time_limit_s,
        point_limit_s=point_limit_s,
    ):
        note(figure)
    calibration = calibration_of(figures, fingerprint(machine), engine)
    other_share = before.until(Counters.now()).other_share
    return Probe(tuple(figures), calibration, time.monotonic() - begin, other_share)


def calibration_of(figures: Sequence[Figure], machine: str, engine: str) -> Calibration:
    """The starting point that the figures make for this machine."""
    rates = HostRates(
        bandwidth_bytes_per_s=_curve(figures, "read"),
        decode_bytes_per_s=_curves(figures, "decode"),
        prefill_flops=_curves(figures, "prefill"),
    )
    (small,) = (figure for figure in figures if figure.what == "small call")
    (hand,) = (figure for figure in figures if figure.what == "hand-over")
    return replace(
        Calibration(machine=machine, engine=engine, source="probe", rates=rates),
        layer_s=SMALL_CALLS * small.rate.median,
        handover_s=hand.rate.median,
        decode_error=PROBED_DECODE_ERROR,
        prefill_error=PROBED_PREFILL_ERROR,
    )


def read_bandwidth(kernels: Kernels, num_threads: int) -> Figure:
    """Bytes a second that so many threads read from memory."""
    set_threads(num_threads)
    data = np.ones(READ_BYTES, np.uint8)
    seconds = _repeat(lambda: kernels.read(data), 5)
    return Figure("read", num_threads, _rates(READ_BYTES, seconds), "B/s")


def small_calls(spec: ModelSpec, num_threads: int) -> Figure:
    """Seconds of one small torch call on one token, as they stand around the operators."""
    set_threads(num_threads)
    x = torch.ones(1, spec.geometry.hidden, dtype=torch.bfloat16)
    weight = torch.ones(spec.geometry.hidden, dtype=torch.bfloat16)

    def norm() -> None:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        torch.cat(((wide * scale).to(torch.bfloat16) * weight, x), -1)

    with torch.inference_mode():
        seconds = [s / 9 for s in _repeat(norm, 200)]
    return Figure("small call", num_threads, _spread(seconds), "s")


def hand_over(kernels: Kernels, num_threads: int) -> Figure:
    """Seconds until all threads have taken up and finished next to nothing."""
    set_threads(num_threads)
    data = np.ones(64 * num_threads, np.uint8)
    return Figure("hand-over", num_threads, _spread(_repeat(lambda: kernels.read(data), 200)), "s")


def _repeat(call: Callable[[], object], times: int) -> list[float]:
    call()
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _rates(work: float, seconds: Sequence[float]) -> Spread:
    return _spread([work / s for s in seconds])


def _spread(values: Sequence[float]) -> Spread:
    ranked = sorted(values)
    quarter = len(ranked) // 4
    return Spread(median(ranked), ranked[quarter], ranked[-1 - quarter], len(ranked))


def _curve(figures: Sequence[Figure], what: str) -> dict[int, float]:
    return {f.num_threads: f.rate.median for f in figures if f.what == what}


def _curves(figures: Sequence[Figure], phase: str) -> dict[str, dict[int, float]]:
    names = {f.what.removesuffix(f" {phase}") for f in figures if f.what.endswith(f" {phase}")}
    return {name: _curve(figures, f"{name} {phase}") for name in sorted(names)}
