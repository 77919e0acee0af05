"""Valid or no number: what a measurement must pass before its numbers count."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.bench.measurement import Measurement, is_contended
from autoplace.bench.metrics import Status
from autoplace.bench.request import MeasureSettings
from autoplace.bench.usage import Usage
from autoplace.hardware.machine import Machine
from autoplace.units import MIB

RATE_MARGIN = 1.25
"""A profile's bandwidth is a data sheet's or a probe's: a real rate may pass it by a quarter."""
CACHED_BYTES = {"cpu": 512 * MIB, "gpu": 128 * MIB}
"""What may come from a device's caches instead of its memory: the largest L3 and L2 sold."""
MAX_COLD_FAULTS = 64
"""Major faults a repeat that are noise: pages of libraries, not of weights."""


@dataclass(frozen=True)
class Verdict:
    """Why a measurement is no number."""

    status: Status
    reason: str


def judge(
    measurement: Measurement,
    *,
    settings: MeasureSettings,
    machine: Machine,
    decode_bytes: Mapping[str, float],
    resident: float,
) -> Verdict | None:
    """The first gate that fails, or None. `decode_bytes`: by device, that one token reads."""
    rate = measurement.decode_tok_per_s.median
    return (
        implausible(rate, machine, decode_bytes)
        or cold(measurement, resident, settings)
        or contended(measurement.usage, settings)
        or unstable(measurement, settings)
    )


def implausible(
    decode_tok_per_s: float, machine: Machine, decode_bytes: Mapping[str, float]
) -> Verdict | None:
    """Whether a device would have to read faster than it can.

    Emulated devices all read from the host's memory.
    """
    by_device = {"cpu": sum(decode_bytes.values())} if machine.emulated else dict(decode_bytes)
    for name, n_bytes in by_device.items():
        device = machine.by_name[name]
        uncached = n_bytes - CACHED_BYTES["gpu" if device.is_gpu else "cpu"]
        needed = uncached * decode_tok_per_s
        if needed > RATE_MARGIN * device.bandwidth_bytes_per_s:
            return Verdict(
                Status.IMPLAUSIBLE,
                f"{decode_tok_per_s:.4g} tokens/s need {needed / 1e9:.1f} GB/s of {name}, "
                f"which has {device.bandwidth_bytes_per_s / 1e9:.1f} GB/s",
            )
    return None


def cold(measurement: Measurement, resident: float, settings: MeasureSettings) -> Verdict | None:
    """Whether host weights had to come from the disk while it was measured."""
    if resident < settings.min_resident_share:
        return Verdict(
            Status.COLD,
            f"only {resident:.1%} of the memory-mapped host weights are in the page cache",
        )
    faults = measurement.usage.major_faults
    if faults > MAX_COLD_FAULTS * len(measurement.prefill_s):
        return Verdict(Status.COLD, f"{faults} pages were read from the disk while measuring")
    return None


def contended(usage: Usage, settings: MeasureSettings) -> Verdict | None:
    if not is_contended(usage, settings):
        return None
    return Verdict(
        Status.CONTENDED,
        f"other processes took {usage.other_share:.0%} of the CPU time, and our threads waited "
        f"{usage.wait_share:.0%} of the time they could have run",
    )


def unstable(measurement: Measurement, settings: MeasureSettings) -> Verdict | None:
    """Whether the repeats are too far apart to say anything. One repeat has no spread."""
    num_repeats = len(measurement.prefill_s)
    if num_repeats < 2 or measurement.middle_spread <= settings.unstable_spread:
        return None
    return Verdict(
        Status.UNSTABLE,
        f"the middle half of {num_repeats} repeats spans {measurement.middle_spread:.0%} of the "
        f"median, more than {settings.unstable_spread:.0%}",
    )
