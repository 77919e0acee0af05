"""Correction by trials: what it recovers, what it resists, and what it refuses."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoplace.errors import AutoplaceError
from autoplace.hardware.fingerprint import description, fingerprint
from autoplace.predict.calibrate import fit
from autoplace.predict.calibration import (
    Calibration,
    calibration_from_json,
    calibration_to_json,
    load_calibration,
    save_calibration,
)
from autoplace.predict.calibration_store import calibration_path, find_calibration
from autoplace.predict.rates import HostRates, along, at, at_rows
from tests.placement.machines import machine

RNG = np.random.default_rng(0)


def costs(count: int) -> list[dict[str, float]]:
    shares = RNG.uniform(0.1, 1.0, (count, 3))
    return [dict(zip(("host", "gpu", "launch"), row, strict=True)) for row in shares.tolist()]


def total(cost: dict[str, float], **factors: float) -> float:
    return sum(seconds * factors.get(key, 1.0) for key, seconds in cost.items())


def test_factors_of_a_biased_machine_are_recovered() -> None:
    seen = costs(24)
    fitted = fit(seen, [total(c, host=1.6, gpu=0.8, launch=1.2) for c in seen])
    assert fitted.factors["host"] == pytest.approx(1.6, rel=0.05)
    assert fitted.factors["gpu"] == pytest.approx(0.8, rel=0.05)
    assert fitted.error is not None
    assert fitted.error < 0.01


def test_one_run_corrects_the_common_scale() -> None:
    seen = costs(4)
    fitted = fit(seen[:1], [2 * total(seen[0])])
    assert all(2 * 0.9 < factor < 2 * 1.1 for factor in fitted.factors.values())
    assert fitted.error is None


def test_an_outlier_bends_the_fit_by_less_than_two_percent() -> None:
    seen = costs(20)
    measured = [total(c, host=1.5) for c in seen]
    measured[3] *= 2.2
    fitted = fit(seen, measured)
    predictions = [sum(fitted.factors[k] * s for k, s in c.items()) for c in seen]
    errors = [abs(p / total(c, host=1.5) - 1) for p, c in zip(predictions, seen, strict=True)]
    assert np.median(errors) < 0.02


def test_a_contradiction_of_over_three_times_is_reported_and_not_fitted() -> None:
    seen = costs(10)
    measured = [total(c) for c in seen]
    measured[4] *= 5
    fitted = fit(seen, measured)
    assert fitted.suspicious == {4: pytest.approx(5, rel=0.01)}
    assert fitted.factors["host"] == pytest.approx(1, rel=0.01)
    assert len(fitted.errors) == 9


def test_factors_stay_within_their_bounds() -> None:
    seen = [{"host": 1.0, "gpu": 0.001}, {"host": 0.001, "gpu": 1.0}] * 10
    fitted = fit(seen, [2.9, 0.35] * 10)
    assert all(1 / 40 <= factor <= 40 for factor in fitted.factors.values())
    assert fitted.factors["host"] / fitted.factors["gpu"] <= 16


def test_where_one_factor_is_at_its_bound_the_others_make_up_for_it() -> None:
    """`host` is ten times as fast as predicted, but four is the most that it may bend."""
    seen = [{"host": 1.0, "gpu": share} for share in (1.0, 2.0, 3.0, 4.0)]
    measured = [0.1 + 0.5 * cost["gpu"] for cost in seen]
    fitted = fit(seen, measured, freedom={"host": 9.0, "gpu": 2.0}, scale_freedom=1e-3)
    assert fitted.factors["host"] == pytest.approx(0.25, rel=0.01)
    errors = [total(cost, **fitted.factors) / m - 1 for cost, m in zip(seen, measured, strict=True)]
    assert max(map(abs, errors)) < 0.15


def test_a_calibration_comes_back_from_its_file(tmp_path: Path) -> None:
    calibration = Calibration(
        "abc",
        "builtin",
        "probe and 3 trials",
        HostRates(
            {1: 9e9, 2: 15e9},
            {"experts blocks": {2: 8e9}},
            {"linear dense": {2: {1.0: 1e10, 0.75: 9e9}}},
            {2: {1.0: 3e-4}},
            {2: 2e-4},
        ),
        {"experts host blocks": 1.2},
        {"experts host blocks": 0.9},
        num_trials=3,
    )
    save_calibration(calibration, tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == calibration


@pytest.mark.parametrize(
    "change",
    [{"format": 99}, {"decode": {"x": "nan"}}, {"rates": None}, {"handover_s": -1.0}],
    ids=["format", "nan", "rates", "negative"],
)
def test_what_is_no_calibration_is_refused(change: dict[str, object]) -> None:
    data = json.loads(json.dumps(calibration_to_json(Calibration())))
    with pytest.raises(AutoplaceError):
        calibration_from_json({**data, **change})


def test_a_calibration_of_another_machine_or_engine_is_refused_by_name() -> None:
    calibration = Calibration("abc", "builtin")
    calibration.check(machine="abc", engine="builtin")
    with pytest.raises(AutoplaceError, match="machine abc, not def"):
        calibration.check(machine="def", engine="builtin")
    with pytest.raises(AutoplaceError, match=r"engine builtin, not llama\.cpp"):
        calibration.check(machine="abc", engine="llama.cpp")
    there = replace(calibration, described="EPYC, 96 cores, 384 GiB, no GPU")
    with pytest.raises(AutoplaceError, match=r"abc \(EPYC, 96 cores.*\), not def \(host, 8 cores"):
        there.check(machine="def", engine="builtin", described=description(machine(24)))


@pytest.mark.parametrize(("threads", "rate"), [(1, 5.0), (2, 10.0), (3, 12.0), (4, 14.0), (8, 9.0)])
def test_a_measured_curve_sees_that_threads_past_the_best_slow_down(
    threads: int, rate: float
) -> None:
    assert at({2: 10.0, 4: 14.0, 8: 9.0}, threads) == rate


@pytest.mark.parametrize(("rows", "rate"), [(1, 10.0), (2, 20.0), (4, 40.0), (64, 40.0), (0.5, 10)])
def test_a_rate_by_rows_follows_a_power_law_between_its_points(rows: float, rate: float) -> None:
    assert at_rows({1.0: 10.0, 4.0: 40.0}, rows) == pytest.approx(rate)


@pytest.mark.parametrize(("tokens", "seconds"), [(1, 1.0), (17, 2.0), (33, 3.0), (65, 5.0)])
def test_seconds_by_tokens_go_on_as_straight_as_they_came(tokens: int, seconds: float) -> None:
    assert along({1.0: 1.0, 33.0: 3.0}, tokens) == pytest.approx(seconds)


def test_a_kept_calibration_is_found_and_a_damaged_one_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("autoplace.predict.calibration_store.cache_dir", lambda: tmp_path)
    where = machine(24)
    assert find_calibration(where, "builtin", None) == Calibration()
    own = Calibration(fingerprint(where), "builtin", "probe")
    save_calibration(own, calibration_path(where, "builtin"))
    assert find_calibration(where, "builtin", None) == own
    assert find_calibration(where, "llama.cpp", None) == Calibration()
    calibration_path(where, "builtin").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert find_calibration(where, "builtin", None) == Calibration()
    assert "the kept calibration is not used" in caplog.text
    with pytest.raises(AutoplaceError, match="is no JSON"):
        find_calibration(where, "builtin", calibration_path(where, "builtin"))


def test_a_given_calibration_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "there.json"
    save_calibration(Calibration("abc", "builtin"), path)
    with pytest.raises(AutoplaceError, match=r"there\.json: this calibration is of machine abc"):
        find_calibration(machine(24), "builtin", path)
    path.write_text('{"format": 2}')
    with pytest.raises(AutoplaceError, match=r"there\.json: expected a calibration of format"):
        find_calibration(machine(24), "builtin", path)
