"""What makes a measurement no number; each gate with figures that can be checked by hand."""

from dataclasses import replace

import pytest

from autoplace.bench.gates import judge
from autoplace.bench.measurement import Measurement
from autoplace.bench.metrics import Status
from autoplace.bench.request import MeasureSettings
from autoplace.bench.usage import Usage
from autoplace.hardware.machine import Device, Machine
from autoplace.units import GIB, MIB

QUIET = Usage(wall_s=10, cpu_s=10, wait_s=0, other_s=0, major_faults=0, num_cores=2)
GOOD = Measurement(
    prefill_s=(1.0, 1.01, 1.02),
    decode_s=(2.0, 2.01, 2.02),
    num_decoded=20,  # 10 tokens/s
    usage=QUIET,
    cut_short=False,
)
CPU = Device("cpu", "host", 64 * GIB, 0, 50e9, 1e12)
GPU = Device("cuda:0", "card", 24 * GIB, 0, 500e9, 1e14)
MACHINE = Machine("m", (CPU, GPU))
SETTINGS = MeasureSettings()


def status(
    measurement: Measurement = GOOD,
    *,
    machine: Machine = MACHINE,
    decode_bytes: dict[str, float] | None = None,
    resident: float = 1.0,
    settings: MeasureSettings = SETTINGS,
) -> Status | None:
    verdict = judge(
        measurement,
        settings=settings,
        machine=machine,
        decode_bytes=decode_bytes or {},
        resident=resident,
    )
    return verdict.status if verdict else None


def test_a_quiet_steady_measurement_passes() -> None:
    assert status(decode_bytes={"cpu": 1e9, "cuda:0": 1e9}) is None


@pytest.mark.parametrize(
    ("device", "gigabytes", "emulated", "expected"),
    [
        # 10 tokens/s of 6 GB are 60 GB/s: within a quarter of the host's 50.
        ("cpu", 6, False, None),
        ("cpu", 7, False, Status.IMPLAUSIBLE),
        ("cuda:0", 60, False, None),
        ("cuda:0", 64, False, Status.IMPLAUSIBLE),
        # An emulated card reads from the host's memory.
        ("cuda:0", 7, True, Status.IMPLAUSIBLE),
    ],
)
def test_a_rate_that_a_device_cannot_have_is_implausible(
    device: str, gigabytes: float, emulated: bool, expected: Status | None
) -> None:
    machine = replace(MACHINE, emulated=emulated)
    assert status(machine=machine, decode_bytes={device: gigabytes * 1e9}) is expected


def test_what_a_cache_can_hold_may_be_read_faster_than_memory() -> None:
    fast = replace(GOOD, decode_s=(0.002, 0.002, 0.002))  # 10,000 tokens/s
    assert status(fast, decode_bytes={"cpu": 500 * MIB}) is None
    assert status(fast, decode_bytes={"cpu": 600 * MIB}) is Status.IMPLAUSIBLE


@pytest.mark.parametrize(("resident", "expected"), [(0.96, None), (0.94, Status.COLD)])
def test_host_weights_out_of_the_page_cache_are_cold(
    resident: float, expected: Status | None
) -> None:
    assert status(resident=resident) is expected


def test_pages_read_from_the_disk_while_measuring_are_cold() -> None:
    """64 a repeat are noise."""
    assert status(replace(GOOD, usage=replace(QUIET, major_faults=192))) is None
    assert status(replace(GOOD, usage=replace(QUIET, major_faults=193))) is Status.COLD


@pytest.mark.parametrize(
    ("wait_s", "other_s", "wall_s", "expected"),
    [
        # More than half of the time without a CPU, while others had half of both cores.
        (11, 10, 10, Status.CONTENDED),
        # Our own threads kept each other waiting.
        (11, 0, 10, None),
        # Others worked, but not where we did.
        (0, 10, 10, None),
        # Too short for counters in ticks of 10 ms.
        (11, 10, 0.1, None),
    ],
)
def test_waiting_because_of_others_is_contended(
    wait_s: float, other_s: float, wall_s: float, expected: Status | None
) -> None:
    usage = replace(QUIET, wait_s=wait_s, other_s=other_s, wall_s=wall_s)
    assert status(replace(GOOD, usage=usage)) is expected


def test_repeats_far_apart_are_unstable() -> None:
    """Quartiles of 1, 2, 6 are 1.5 and 4 around 2: 125 %."""
    assert status(replace(GOOD, decode_s=(1.0, 2.0, 6.0))) is Status.UNSTABLE
    lenient = replace(SETTINGS, unstable_spread=1.3)
    assert status(replace(GOOD, decode_s=(1.0, 2.0, 6.0)), settings=lenient) is None


def test_one_repeat_before_the_time_limit_is_still_a_number() -> None:
    cut = replace(GOOD, prefill_s=(1.0,), decode_s=(2.0,), cut_short=True)
    assert status(cut) is None
