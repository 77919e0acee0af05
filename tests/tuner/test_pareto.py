"""The front holds what no other placement beats, and the pick takes the least time."""

from autoplace.tuner.pareto import best_of, candidates, pareto_front, request_s
from autoplace.tuner.records import TrialRecord, record_of
from tests.tuner.trials import WORKLOAD, add_measured, new_study


def records(*values: tuple[float, float]) -> list[TrialRecord]:
    study = new_study()
    for decode, prefill in values:
        add_measured(study, decode, prefill)
    return [record_of(trial) for trial in study.trials]


def test_a_placement_that_is_worse_in_both_is_not_on_the_front() -> None:
    front = pareto_front(records((10, 1.0), (9, 1.1), (12, 2.0), (5, 0.5)))
    assert [record.number for record in front] == [2, 0, 3]


def test_of_equal_placements_the_earlier_is_on_the_front() -> None:
    assert [record.number for record in pareto_front(records((10, 1.0), (10, 1.0)))] == [0]


def test_a_request_is_the_prefill_and_all_tokens_but_the_first() -> None:
    (record,) = records((16, 1.0))
    assert request_s(record, WORKLOAD) == 1.0 + 32 / 16


def test_the_best_takes_the_least_time_for_the_workload() -> None:
    ranked = best_of(records((10, 1.0), (16, 1.5), (4, 0.1)), WORKLOAD)
    assert [record.number for record in ranked] == [1, 0, 2]


def test_what_breaks_a_constraint_cannot_be_picked() -> None:
    study = new_study()
    add_measured(study, 100, 0.1, over=1)
    add_measured(study, 1, 1, over=0)
    assert [r.number for r in candidates([record_of(t) for t in study.trials])] == [1]
