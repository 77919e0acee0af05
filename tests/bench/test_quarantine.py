"""Memory that a GPU did not get back, by the figures; no GPU is needed."""

import pytest

from autoplace.bench.quarantine import free_bytes, missing, quarantine_reason
from autoplace.units import GIB, MIB
from tests.bench.trial_requests import emulated_machine


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"cuda:0": 20 * GIB, "cuda:1": 10 * GIB}, ""),
        ({"cuda:0": 20 * GIB - 64 * MIB, "cuda:1": 10 * GIB}, ""),
        ({"cuda:0": 19 * GIB, "cuda:1": 10 * GIB}, "cuda:0 misses 1.00 GiB"),
        ({"cuda:0": 20 * GIB}, "cuda:1 misses 10.00 GiB"),
    ],
)
def test_a_device_with_less_free_memory_than_before_is_named(
    after: dict[str, int], expected: str
) -> None:
    assert missing({"cuda:0": 20 * GIB, "cuda:1": 10 * GIB}, after) == expected


def test_an_emulated_machine_has_nothing_to_quarantine() -> None:
    assert free_bytes(emulated_machine()) == {}
    assert quarantine_reason({}, emulated_machine()) == ""
