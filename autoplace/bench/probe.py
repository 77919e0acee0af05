"""Measures what the time model needs to know of this machine, in under a minute.

First operators one by one, then whole layers as the engine runs them (`probe_sample`), which
correct what the operators say alone (`probe_fit`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.probe_calls import around_a_token, hand_over, read_bandwidth, small_calls
from autoplace.bench.probe_fit import correct
from autoplace.bench.probe_gpu import probe_gpus
from autoplace.bench.probe_numa import numa_nodes, probe_numa, remote_share
from autoplace.bench.probe_rates import Figure, measure_rates
from autoplace.bench.probe_sample import Timed, time_sample
from autoplace.bench.threads import set_threads
from autoplace.bench.usage import Counters
from autoplace.errors import AutoplaceError
from autoplace.hardware.fingerprint import description, fingerprint
from autoplace.hardware.machine import Machine
from autoplace.models.backend import kernels as built_kernels
from autoplace.placement.options import thread_choices
from autoplace.predict.calibration import (
    PROBED_DECODE_ERROR,
    PROBED_PREFILL_ERROR,
    Calibration,
)
from autoplace.predict.costs import ACTIVATION_PASSES
from autoplace.predict.rates import HostRates, Surface, family_of

PREFILL_TOKENS = (32, 128)
ALONE_SHARE = 0.2
"""Of the time: operators one by one; the rest is for the sample."""
SMALL_CALLS = 60
"""Small calls of torch around the operators of one layer at prefill, counted in a DeepSeek layer of
the builtin engine."""
DECODE_CALLS = 4
"""The same at one token, where the kernels take half a layer with one call."""


@dataclass(frozen=True)
class Probe:
    """What was measured, and the calibration that it makes."""

    figures: tuple[Figure, ...]
    calibration: Calibration
    seconds: float
    other_share: float
    """Of the host's CPU time, that other processes took meanwhile: more makes rates too low."""

    @property
    def remote_share(self) -> float | None:
        """Reading another NUMA node's memory over reading one's own; None with one node."""
        return remote_share(self.figures)


def probe(
    spec: ModelSpec,
    machine: Machine,
    engine: str,
    *,
    time_limit_s: float = 60.0,
    point_limit_s: float = 1.0,
    interleave: str = "auto",
    on_figure: Callable[[Figure], None] = lambda figure: None,
) -> Probe:
    """Measure this machine at the shapes of a model. Raise `AutoplaceError` without kernels.

    `engine` and `interleave`: whose calibration it makes, and how that one loads CPU weights.
    """
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
        note(small_calls(spec, num_threads))
        note(around_a_token(spec, num_threads))
    note(hand_over(kernels, threads[-1]))
    for figure in (*probe_numa(numa_nodes()), *probe_gpus(machine, threads[-1])):
        note(figure)
    families = ("blocks", "dense", *(("marlin4", "marlin8") if machine.emulated else ()))
    for figure in measure_rates(
        spec,
        kernels,
        families,
        threads,
        set_threads=set_threads,
        prefill_tokens=PREFILL_TOKENS,
        deadline_s=begin + ALONE_SHARE * time_limit_s,
        point_limit_s=point_limit_s,
        interleave=interleave != "off",
    ):
        note(figure)
    alone = calibration_of(figures, spec, fingerprint(machine), engine)
    passes: list[Timed] = []
    deadline_s = begin + time_limit_s
    for one in time_sample(
        spec, machine, families, threads, deadline_s=deadline_s, interleave=interleave
    ):
        passes.append(one)
        note(_pass_figure(one))
    calibration = replace(correct(alone, machine, passes), described=description(machine))
    other_share = before.until(Counters.now()).other_share
    return Probe(tuple(figures), calibration, time.monotonic() - begin, other_share)


def calibration_of(
    figures: Sequence[Figure], spec: ModelSpec, machine: str, engine: str
) -> Calibration:
    """The starting point that figures of single operators make for this machine."""
    bandwidth = _curve(figures, "read")
    return Calibration(
        machine=machine,
        engine=engine,
        source="probe",
        rates=HostRates(
            bandwidth_bytes_per_s=bandwidth,
            decode_bytes_per_s=_curves(figures, "decode"),
            prefill_flops=_surfaces(figures),
            layer_s={
                threads: _around_a_layer(spec, small_s, bandwidth[threads])
                for threads, small_s in _curve(figures, "small call").items()
            },
            token_s=_curve(figures, "token"),
        ),
        **_of_gpus(figures),
        handover_s=next(f.rate.median for f in figures if f.what == "hand-over"),
        decode_error=PROBED_DECODE_ERROR,
        prefill_error=PROBED_PREFILL_ERROR,
    )


def _of_gpus(figures: Sequence[Figure]) -> dict[str, Any]:
    """A calibration's figures of real GPUs; empty ones where there is none."""
    by_name = {figure.what: figure.rate.median for figure in figures}
    memory = {w.split()[1]: v for w, v in by_name.items() if w.startswith("memory ")}
    launches = {w.split()[1]: v for w, v in by_name.items() if w.startswith("launch ")}
    links = {}
    for gpu in memory:
        once = by_name[f"hand-over {gpu}"]
        links[f"cpu {gpu}"] = once, by_name[f"cpu to {gpu}, pinned"]
        links[f"{gpu} cpu"] = once, by_name[f"{gpu} to cpu, pinned"]
        for other in memory:
            if other != gpu:
                links[f"{gpu} {other}"] = (
                    by_name[f"hop {gpu} to {other}"],
                    by_name[f"{gpu} to {other}"],
                )
    return {"gpu_bytes_per_s": memory, "launch_s": launches, "links": links}


def _around_a_layer(spec: ModelSpec, small_s: float, bytes_per_s: float) -> Mapping[float, float]:
    """A guess of the seconds around a layer's operators by tokens, until the sample says better."""
    row_s = ACTIVATION_PASSES * 4 * spec.geometry.hidden / bytes_per_s
    at_prefill = {float(n): SMALL_CALLS * small_s + n * row_s for n in PREFILL_TOKENS}
    return {1.0: DECODE_CALLS * small_s} | at_prefill


def _pass_figure(one: Timed) -> Figure:
    """One pass of the sample, named by what is in it."""
    first = one.placement.layers[-1]
    parts = [first.attention, *([first.experts] if first.experts else [])]
    families = " + ".join(family_of(part.operator, part.num_bits) for part in parts)
    what = f"token at {one.position}" if one.tokens == 1 else f"{one.tokens} tokens"
    return Figure(f"sample {families}, {what}", one.num_threads, one.seconds, "s")


def _curve(figures: Sequence[Figure], what: str) -> dict[int, float]:
    return {f.num_threads: f.rate.median for f in figures if f.what == what}


def _surfaces(figures: Sequence[Figure]) -> Mapping[str, Surface]:
    found: dict[str, dict[int, dict[float, float]]] = {}
    for figure in figures:
        if figure.what.endswith(" prefill"):
            curves = found.setdefault(figure.what.removesuffix(" prefill"), {})
            curves.setdefault(figure.num_threads, {})[figure.rows] = figure.rate.median
    return found


def _curves(figures: Sequence[Figure], phase: str) -> dict[str, dict[int, float]]:
    names = {f.what.removesuffix(f" {phase}") for f in figures if f.what.endswith(f" {phase}")}
    return {name: _curve(figures, f"{name} {phase}") for name in sorted(names)}
