import pytest

from autoplace.predict.zones import LEAST_ERROR_BYTES, Zone, zone
from autoplace.units import GIB
from tests.placement.machines import machine


@pytest.mark.parametrize(
    ("over", "engine", "verdict"),
    [
        (-10 * GIB, "builtin", Zone.FITS),
        (-100, "builtin", Zone.CLOSE),
        (1, "builtin", Zone.DOES_NOT_FIT),
        (1, "ktransformers-0.3", Zone.CLOSE),
        (-100, "ktransformers-0.3", Zone.CLOSE),
        (2 * GIB, "ktransformers-0.3", Zone.DOES_NOT_FIT),
    ],
)
def test_a_card_is_judged_with_the_error_of_the_arithmetic(
    over: int, engine: str, verdict: Zone
) -> None:
    assert zone({"cpu": -GIB, "cuda:0": over}, machine(24), engine=engine) is verdict


def test_the_error_is_three_percent_or_300_mib() -> None:
    small, large = machine(4), machine(48)
    for where, error in ((small, LEAST_ERROR_BYTES), (large, round(0.03 * 47.5 * GIB))):
        assert zone({"cuda:0": -error}, where, engine="builtin") is Zone.FITS
        assert zone({"cuda:0": -error + 1}, where, engine="builtin") is Zone.CLOSE


def test_nothing_is_close_where_the_ledger_decides() -> None:
    emulated = machine(24, emulated=True)
    assert zone({"cuda:0": 0}, emulated, engine="builtin") is Zone.FITS
    assert zone({"cuda:0": 1}, emulated, engine="builtin") is Zone.DOES_NOT_FIT


def test_a_device_that_is_not_there_does_not_fit() -> None:
    assert zone({"cuda:7": 5}, machine(24), engine="ktransformers-0.3") is Zone.DOES_NOT_FIT
