"""What a process really takes, against the ledger; and the tolerance."""

from dataclasses import replace

import pytest

from autoplace import native
from autoplace.bench.footprint import Pool
from autoplace.bench.trial_process import TrialProcess
from autoplace.units import GIB, MIB
from tests.bench.trial_requests import TinyModel


@pytest.mark.parametrize(
    ("declared", "used", "expected"),
    [
        (1 * GIB, 1 * GIB + 300 * MIB, True),
        (1 * GIB, 1 * GIB + 301 * MIB, False),
        (100 * GIB, 103 * GIB, True),
        (100 * GIB, 104 * GIB, False),
        (1 * GIB, 0, True),
    ],
)
def test_use_may_pass_the_declared_bytes_by_3_percent_or_300_mib(
    declared: int, used: int, expected: bool
) -> None:
    assert Pool(declared, used).is_within is expected


@pytest.mark.parametrize("interleave", ["auto", "off"])
def test_a_real_placement_stays_within_what_it_declared(tiny: TinyModel, interleave: str) -> None:
    request = replace(tiny.request(), interleave=interleave)
    footprint = TrialProcess().footprint(request)
    planned = tiny.plan(request).by_device
    declared = sum(memory.peak for memory in planned.values())
    assert set(footprint.pools) == {"host"}
    assert footprint.pools["host"].declared_bytes == declared - footprint.mapped_bytes
    assert footprint.pools["host"].used_bytes > 0
    assert footprint.is_within
    assert footprint.mapped_bytes == footprint.resident_bytes
    kernels = native.load()
    copied = interleave == "auto" and kernels is not None and kernels.interleave_pays(12, 16, 256)
    assert (footprint.mapped_bytes == 0) is copied
