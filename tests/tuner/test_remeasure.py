"""What is measured again, what survives the noise, and how large the gain is."""

import pytest

from autoplace.tuner.pareto import request_s
from autoplace.tuner.records import record_of
from autoplace.tuner.remeasure import final_figures, gain, pooled_noise, to_remeasure
from tests.tuner.trials import (
    WORKLOAD,
    add_measured,
    add_readings,
    add_sentinels,
    new_study,
)


def test_the_front_and_the_best_obvious_placement_are_measured_again() -> None:
    study = new_study()
    add_measured(study, 10, 1.0, origin="obvious: even split")
    add_measured(study, 9, 1.2, origin="obvious: one GPU alone")
    add_measured(study, 12, 0.9)
    add_measured(study, 14, 1.5)
    chosen = to_remeasure([record_of(trial) for trial in study.trials], WORKLOAD)
    assert [record.number for record in chosen] == [2, 3, 0]


def test_at_most_four_points_of_a_long_front_are_measured_again_the_best_among_them() -> None:
    study = new_study()
    for i in range(8):
        add_measured(study, 10 + i, 1 + i / 2)
    records = [record_of(trial) for trial in study.trials]
    chosen = to_remeasure(records, WORKLOAD)
    assert len(chosen) == 4
    assert chosen[0] == min(records, key=lambda record: request_s(record, WORKLOAD))


def test_the_final_figures_are_means_of_the_last_readings() -> None:
    study = new_study()
    number = add_measured(study, 20, 0.5)
    add_readings(study, number, (1, 9), session=3)
    add_readings(study, number, (10, 1.0), (14, 1.2), session=7)
    (figures,), _ = final_figures(study, [record_of(study.trials[0])], WORKLOAD)
    assert figures.decode_tok_per_s == 12
    assert figures.prefill_latency_s == pytest.approx(1.1)
    assert figures.n == 2


def test_the_searchs_own_figures_stand_where_the_front_was_not_measured_again() -> None:
    study = new_study()
    add_readings(study, add_measured(study, 20, 0.5), (10, 1.0))
    add_measured(study, 30, 0.4)
    figures, _ = final_figures(study, [record_of(trial) for trial in study.trials], WORKLOAD)
    assert [(one.decode_tok_per_s, one.n) for one in figures] == [(20, 0), (30, 0)]


def test_a_point_that_is_beaten_by_more_than_the_noise_does_not_survive() -> None:
    study = new_study()
    add_readings(study, add_measured(study, 10, 1.0), (10.0, 1.0), (10.1, 1.0))
    add_readings(study, add_measured(study, 12, 1.1), (8.0, 1.1), (8.1, 1.1))
    figures, _ = final_figures(study, [record_of(trial) for trial in study.trials], WORKLOAD)
    assert [one.survives for one in figures] == [True, False]


def test_a_point_that_is_beaten_within_the_noise_survives() -> None:
    study = new_study()
    add_readings(study, add_measured(study, 10, 1.0), (10.0, 1.0), (12.0, 1.1))
    add_readings(study, add_measured(study, 12, 1.1), (9.0, 1.0), (12.0, 1.1))
    figures, _ = final_figures(study, [record_of(trial) for trial in study.trials], WORKLOAD)
    assert [one.survives for one in figures] == [True, True]


def test_noise_is_pooled_over_all_that_was_measured_repeatedly() -> None:
    """By hand: (0.1² + 0.1² + 0 + 0) / 2 degrees of freedom → 0.1."""
    study = new_study()
    add_readings(study, add_measured(study, 10, 1.0), (9.0, 1.0), (11.0, 1.0))
    add_sentinels(study, 0, (10.0, 1.0), (10.0, 1.0))
    _, noise = final_figures(study, [record_of(study.trials[0])], WORKLOAD)
    assert noise.decode == pytest.approx(0.1)
    assert noise.prefill == 0


def test_nothing_measured_twice_gives_no_noise() -> None:
    assert pooled_noise([], WORKLOAD).request == 0


def test_the_gain_is_stated_with_twice_its_standard_error() -> None:
    study = new_study()
    add_readings(study, add_measured(study, 16, 1.0), (16.0, 1.0), (16.0, 1.0))
    add_readings(study, add_measured(study, 8, 2.0), (7.2, 2.2), (8.8, 1.8))
    (best, baseline), noise = final_figures(
        study, [record_of(trial) for trial in study.trials], WORKLOAD
    )
    ratio, error = gain(best, baseline, noise, WORKLOAD)
    assert ratio == pytest.approx((2 + 32 / 8) / 3, rel=0.01)
    assert error == pytest.approx(ratio * 2 * noise.request)  # sqrt(1/2 + 1/2) is 1


def test_the_best_that_is_itself_the_obvious_one_gains_nothing() -> None:
    study = new_study()
    add_readings(study, add_measured(study, 16, 1.0), (15.0, 1.0), (16.0, 1.0))
    (only,), noise = final_figures(study, [record_of(study.trials[0])], WORKLOAD)
    assert gain(only, only, noise, WORKLOAD) == (1.0, 0.0)
