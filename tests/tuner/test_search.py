"""The search: what it tries, in which order, what it tells Optuna, and when it ends."""

from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from autoplace.bench.metrics import Basis, Metrics, Outcome, Quality, Status
from autoplace.bench.request import TrialRequest
from autoplace.errors import AutoplaceError
from autoplace.placement.placement import Choice
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.drift import SENTINEL, readings
from autoplace.tuner.first_placements import UserRules
from autoplace.tuner.pareto import candidates
from autoplace.tuner.records import record_of
from autoplace.tuner.sampler import SAMPLERS, SamplerSettings
from autoplace.tuner.search import Search, SearchSettings
from tests.tuner.problems import Quiet, Scripted, small_problem, statuses, study_of

EIGHT = SearchSettings(n_trials=8, sampler=SamplerSettings(n_startup_trials=2))


def search(
    problem: Problem,
    study: optuna.Study,
    settings: SearchSettings = EIGHT,
    *,
    runner: Scripted | None = None,
    user_rules: UserRules | None = None,
    earlier: list[optuna.Study] | None = None,
) -> str:
    runner = runner or Scripted(problem.spec)
    one = Search(problem, study, runner, settings, listener=Quiet())
    one.enqueue_first(user_rules=user_rules, earlier=earlier or [])
    return one.run()


def complete(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return study.get_trials(states=(TrialState.COMPLETE,))


def keys(study: optuna.Study) -> list[str]:
    return [trial.user_attrs["key"] for trial in study.trials]


@pytest.fixture
def problem() -> Problem:
    """Two GPUs on which not all experts fit."""
    return small_problem(5, 4)


@pytest.fixture
def study(problem: Problem) -> optuna.Study:
    return study_of(problem)


def test_it_ends_when_as_many_trials_are_measured_as_were_asked_for(
    problem: Problem, study: optuna.Study
) -> None:
    assert search(problem, study) == "8 trials are complete"
    assert len(complete(study)) == 8


def test_the_obvious_come_first_then_the_predicted_best_then_the_samplers(
    problem: Problem, study: optuna.Study
) -> None:
    search(problem, study, replace(EIGHT, n_trials=12))
    origins = [trial.user_attrs["origin"].partition(":")[0] for trial in study.trials]
    assert list(dict.fromkeys(origins)) == ["obvious", "predicted best", "sampled"]
    assert origins == sorted(origins, key=["obvious", "predicted best", "sampled"].index)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_placement_with_its_settings_completes_twice(
    problem: Problem, study: optuna.Study, sampler: str
) -> None:
    n_trials = 6 if sampler == "gp" else 16  # The GP takes many seconds to ask for one.
    sampling = SamplerSettings(sampler, n_startup_trials=4)
    search(problem, study, SearchSettings(n_trials=n_trials, sampler=sampling))
    measured = [trial.user_attrs["key"] for trial in complete(study)]
    assert len(measured) == len(set(measured)) == n_trials


def test_what_is_predicted_not_to_fit_is_pruned_with_its_bytes_and_never_run(
    problem: Problem, study: optuna.Study
) -> None:
    runner = Scripted(problem.spec)
    search(problem, study, replace(EIGHT, n_trials=12), runner=runner)
    pruned = [t for t in study.trials if t.user_attrs["status"] == "predicted_not_to_fit"]
    assert pruned
    for trial in pruned:
        assert trial.state is TrialState.PRUNED
        assert max(trial.constraints.values()) > 0
        assert trial.constraints == trial.user_attrs["overrun_bytes"]
        assert "outcome" not in trial.user_attrs
    assert len(runner.requests) == 12 + len(readings(study, SENTINEL))


def test_what_does_not_fit_is_run_and_recorded_as_out_of_memory_when_pruning_is_off(
    problem: Problem, study: optuna.Study
) -> None:
    search(problem, study, replace(EIGHT, n_trials=12, prune=False))
    over = [t for t in study.trials if t.user_attrs["status"] == "out_of_memory"]
    assert over
    for trial in over:
        assert trial.state is TrialState.PRUNED
        device = trial.user_attrs["outcome"]["out_of_memory_device"]
        assert trial.constraints[device] == trial.user_attrs["overrun_bytes"][device] > 0


def test_every_trial_carries_what_the_dashboard_shows(
    problem: Problem, study: optuna.Study
) -> None:
    search(problem, study)
    for trial in study.trials:
        attributes = trial.user_attrs
        assert attributes["rules"].startswith("- match:")
        assert set(attributes["predicted_bytes"]) <= {"cpu", "cuda:0", "cuda:1"}
        assert attributes["budget_bytes"]["cuda:0"] == 5 * 1024**2
        assert attributes["placement"]["engine"] == "builtin"
        assert attributes["basis"] == "predicted"
        assert attributes["owner"]["pid"]
    assert study.metric_names == ["decode_tok_per_s", "prefill_latency_s"]


def crash(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
    return Outcome(Status.CRASHED, Basis.PREDICTED, reason="the worker died of signal 9")


def test_a_crash_is_a_failed_trial_with_its_reason_and_the_study_goes_on(
    problem: Problem, study: optuna.Study
) -> None:
    runner = Scripted(problem.spec, lambda n, r, o: crash(n, r, o) if n == 2 else o)
    search(problem, study, runner=runner)
    (failed,) = study.get_trials(states=(TrialState.FAIL,))
    assert failed.values is None
    assert failed.user_attrs["reason"] == "the worker died of signal 9"
    assert len(complete(study)) == 8


def test_a_queued_placement_whose_measurement_was_disturbed_is_queued_again(
    problem: Problem, study: optuna.Study
) -> None:
    def busy(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        return outcome if run > 2 else replace(outcome, status=Status.CONTENDED, metrics=None)

    search(problem, study, runner=Scripted(problem.spec, busy))
    disturbed = study.get_trials(states=(TrialState.FAIL,))
    assert len(disturbed) == 2
    measured = {trial.user_attrs["key"] for trial in complete(study)}
    assert {trial.user_attrs["key"] for trial in disturbed} <= measured


def test_a_placement_that_is_disturbed_three_times_is_left(
    problem: Problem, study: optuna.Study
) -> None:
    def always(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        first = len({r.rules for r in runner.requests}) == 1 or request == runner.requests[0]
        return replace(outcome, status=Status.COLD, metrics=None) if first else outcome

    runner = Scripted(problem.spec, always)
    search(problem, study, runner=runner)
    assert statuses(study.trials).count("cold") == 3


def test_ten_failures_one_after_the_other_end_the_search_with_the_last_reason(
    problem: Problem, study: optuna.Study
) -> None:
    ended = search(problem, study, runner=Scripted(problem.spec, crash))
    assert ended == ("10 trials failed one after the other, the last: the worker died of signal 9")


def test_a_runner_that_cannot_go_on_ends_the_search_with_its_reason(
    problem: Problem, study: optuna.Study
) -> None:
    def quarantined(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        if run == 3:
            raise AutoplaceError("cuda:0 is quarantined: 3 GiB did not come back")
        return outcome

    ended = search(problem, study, runner=Scripted(problem.spec, quarantined))
    assert ended == "cuda:0 is quarantined: 3 GiB did not come back"
    assert len(complete(study)) == 2


def test_a_space_that_is_used_up_ends_the_search() -> None:
    problem = small_problem(num_cores=1)
    study = study_of(problem)
    ended = search(problem, study, replace(EIGHT, n_trials=1000))
    assert ended == "every placement of the search space has been tried"
    size = 1
    for parameter in problem.space.parameters:
        size *= parameter.size
    assert len(complete(study)) >= 0.95 * size


def test_a_time_limit_ends_the_search(problem: Problem, study: optuna.Study) -> None:
    assert search(problem, study, replace(EIGHT, timeout_s=0.0)) == "0 s are over"
    assert not complete(study)


def test_a_search_in_two_calls_tries_what_one_call_would(problem: Problem) -> None:
    once, twice = study_of(problem), study_of(problem)
    search(problem, once, replace(EIGHT, n_trials=14))
    search(problem, twice, replace(EIGHT, n_trials=9))
    search(problem, twice, replace(EIGHT, n_trials=14))
    assert keys(once) == keys(twice)


def test_the_same_seed_gives_the_same_trials_and_another_seed_others(problem: Problem) -> None:
    studies = [study_of(problem) for _ in range(3)]
    for study, seed in zip(studies, (1, 1, 2), strict=True):
        sampler = SamplerSettings(seed=seed, n_startup_trials=2)
        search(problem, study, SearchSettings(n_trials=12, sampler=sampler))
    assert keys(studies[0]) == keys(studies[1]) != keys(studies[2])


def test_ctrl_c_loses_the_running_trial_only_and_the_next_call_tries_it_again(
    problem: Problem, study: optuna.Study
) -> None:
    def interrupt(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        if run == 2:
            raise KeyboardInterrupt
        return outcome

    with pytest.raises(KeyboardInterrupt):
        search(problem, study, runner=Scripted(problem.spec, interrupt))
    assert len(complete(study)) == 1
    (lost,) = study.get_trials(states=(TrialState.FAIL,))
    search(problem, study)
    assert lost.user_attrs["key"] in [trial.user_attrs["key"] for trial in complete(study)]


def test_a_placement_over_the_quality_guard_is_measured_but_cannot_be_picked(
    problem: Problem, study: optuna.Study
) -> None:
    def lossy(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        metrics = outcome.metrics
        assert isinstance(metrics, Metrics)
        kl = 0.3 if "KExpertsMarlin" in request.rules else 0.01
        return replace(outcome, metrics=replace(metrics, quality=Quality(kl, 0.9, 64)))

    search(problem, study, replace(EIGHT, max_kl=0.1), runner=Scripted(problem.spec, lossy))
    records = [record_of(trial) for trial in complete(study)]
    assert any("KExpertsMarlin" in record.rules for record in records)
    assert all("KExpertsMarlin" not in record.rules for record in candidates(records))


def test_the_first_measured_placement_is_measured_again_every_few_trials(
    problem: Problem, study: optuna.Study
) -> None:
    runner = Scripted(problem.spec)
    search(problem, study, SearchSettings(n_trials=9, sentinel_every=3), runner=runner)
    sentinels = readings(study, SENTINEL)
    assert len(sentinels) == 3
    assert {reading.trial for reading in sentinels} == {complete(study)[0].number}
    assert len(complete(study)) == 9


def with_a_sentinel_that_raises(problem: Problem, error: BaseException) -> Scripted:
    """The third run is the first measurement of the sentinel, after the second trial."""

    def third(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        if run == 3:
            raise error
        return outcome

    return Scripted(problem.spec, third)


def test_ctrl_c_while_the_sentinel_is_measured_keeps_the_trial_before_it(
    problem: Problem, study: optuna.Study
) -> None:
    runner = with_a_sentinel_that_raises(problem, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        search(problem, study, replace(EIGHT, sentinel_every=1), runner=runner)
    assert len(complete(study)) == 2
    assert not readings(study, SENTINEL)


def test_an_error_while_the_sentinel_is_measured_ends_the_search_with_its_reason(
    problem: Problem, study: optuna.Study
) -> None:
    runner = with_a_sentinel_that_raises(problem, AutoplaceError("cuda:0 misses 2 GiB"))
    ended = search(problem, study, replace(EIGHT, sentinel_every=1), runner=runner)
    assert ended == "cuda:0 misses 2 GiB"
    assert len(complete(study)) == 2


def test_the_users_rules_are_the_first_trial_even_outside_the_space(
    problem: Problem, study: optuna.Study
) -> None:
    placement, settings = problem.space.decode({})
    odd = replace(placement.layers[2], attention=Choice("cuda:1", "KLinearTorch"))
    layers = (*placement.layers[:2], odd, *placement.layers[3:])
    odd_placement = replace(placement, layers=layers)
    assert problem.space.encode(odd_placement, settings) is None
    rules = Preparer(problem).prepare(odd_placement, settings).rules + "# mine\n"
    search(problem, study, user_rules=UserRules(odd_placement, settings, rules))
    assert study.trials[0].user_attrs["origin"] == "obvious: your rules"
    assert study.trials[0].user_attrs["rules"] == rules
    assert study.trials[0].state is TrialState.COMPLETE


def test_a_study_over_another_space_starts_from_the_earlier_ones_best(problem: Problem) -> None:
    earlier, later = study_of(problem), study_of(problem)
    search(problem, earlier, replace(EIGHT, n_trials=12))
    search(problem, later, earlier=[earlier])
    found = [t for t in later.trials if t.user_attrs["origin"] == "earlier study"]
    known = {record_of(trial).key for trial in complete(earlier)}
    assert found
    assert all(trial.user_attrs["key"] in known for trial in found)
