"""What a study teaches the model, on a played machine that it is wrong about by a known bias."""

from collections.abc import Sequence
from dataclasses import replace

import optuna
import pytest

from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.bench.request import TrialRequest
from autoplace.predict.calibrate import refit
from autoplace.predict.calibration import Calibration
from autoplace.tuner.accuracy import accuracy_of, sentences
from autoplace.tuner.audit import audit_prunes, audited
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.learn import (
    LEARN_EVERY,
    LEARNED,
    corrected_best,
    learn,
    observations,
    started_from,
)
from autoplace.tuner.predicted_runner import PredictedRunner
from autoplace.tuner.records import CORRECTED_BEST, record_of
from autoplace.tuner.runner import Runner
from autoplace.tuner.sampler import SamplerSettings
from autoplace.tuner.search import Search, SearchSettings
from tests.tuner.problems import Quiet, small_problem, study_of

SETTINGS = SearchSettings(n_trials=14, sampler=SamplerSettings("random"))


def searched(problem: Problem, runner: Runner, settings: SearchSettings = SETTINGS) -> optuna.Study:
    study = study_of(problem)
    search = Search(problem, study, runner, settings, listener=Quiet())
    search.enqueue_first()
    search.run()
    return study


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small_problem(5, 4)


@pytest.fixture(scope="module")
def biased(problem: Problem) -> optuna.Study:
    return searched(problem, PredictedRunner(problem.spec, bias=0.4, noise=0.01, seed=3))


def test_a_biased_machine_is_learned_from_its_trials(
    problem: Problem, biased: optuna.Study
) -> None:
    learned = learn(problem, biased)
    assert learned is not None
    before = accuracy_of([record_of(trial) for trial in biased.trials])
    assert before is not None
    assert before.decode > 0.1
    assert learned.decode.error is not None
    assert learned.decode.error < 0.5 * before.decode
    assert biased.user_attrs[LEARNED]["calibration"]["num_trials"] == 14


@pytest.mark.parametrize(
    ("slow", "times", "said"),
    [
        ([3], 5.0, "trial {} took 5 times as long in decode as predicted, which is not learned"),
        ([3], 0.2, "found in a cache"),
        (range(14), 5.0, "all took about 5 times as long in decode as predicted, which is learned"),
    ],
)
def test_what_contradicts_the_model_by_over_three_times_is_said_with_its_cause(
    problem: Problem, slow: Sequence[int], times: float, said: str
) -> None:
    study = searched(problem, PredictedRunner(problem.spec))
    seen = observations([record_of(trial) for trial in study.trials])
    for index in slow:
        seen[index] = replace(seen[index], decode_s=times * seen[index].decode_s)
    learned = refit(problem.latency_model, seen)
    number = seen[3].name.removeprefix("trial ")
    (doubt,) = learned.doubts
    assert said.format(number) in doubt
    untouched = all(0.99 < factor < 1.01 for factor in learned.decode.factors.values())
    assert untouched == (len(slow) == 1)


def test_the_corrected_model_is_searched_every_few_trials(
    problem: Problem, biased: optuna.Study
) -> None:
    origins = [trial.user_attrs["origin"] for trial in biased.trials]
    assert CORRECTED_BEST in origins
    assert not list(corrected_best(problem, biased, Preparer(problem), LEARN_EVERY + 1))


def test_a_model_that_is_right_is_not_corrected(problem: Problem) -> None:
    study = searched(problem, PredictedRunner(problem.spec))
    origins = [trial.user_attrs["origin"] for trial in study.trials]
    assert CORRECTED_BEST not in origins
    accuracy = accuracy_of([record_of(trial) for trial in study.trials])
    assert accuracy is not None
    assert accuracy.decode == pytest.approx(0, abs=1e-9)
    assert accuracy.num_equal_bytes == accuracy.num_trials


def test_the_same_seed_plays_the_same_machine(problem: Problem) -> None:
    candidate = Preparer(problem).prepare(*problem.space.decode({}))
    request = candidate.request(problem)

    def rates(seed: int, bias: float, noise: float) -> list[float]:
        runner = PredictedRunner(problem.spec, bias=bias, noise=noise, seed=seed)
        metrics = [runner.run(request).metrics for _ in range(2)]
        return [one.decode_tok_per_s.median for one in metrics if one]

    assert rates(0, 0.2, 0.1) == rates(0, 0.2, 0.1) != rates(1, 0.2, 0.1)
    assert len(set(rates(0, 0.2, 0.0))) == 1
    assert len(set(rates(0, 0.0, 0.1))) == 2


def test_a_resumed_study_predicts_from_what_it_began_with(problem: Problem) -> None:
    study = study_of(problem)
    first = problem.calibrated(Calibration(source="first"))
    later = problem.calibrated(Calibration(source="later"))
    assert started_from(study, first).calibration.source == "first"
    assert started_from(study, later).calibration.source == "first"


def test_pruned_placements_are_run_when_audited_and_counted(problem: Problem) -> None:
    study = searched(problem, PredictedRunner(problem.spec))
    runner = PredictedRunner(problem.spec)
    found = audit_prunes(problem, study, runner, Preparer(problem), count=3, seed=0)
    assert len(found) == 3
    assert all(one.confirms and not one.is_false_prune for one in found)
    again = audit_prunes(problem, study, runner, Preparer(problem), count=2, seed=0)
    assert len(again) == len({one.trial for one in again}) == 5
    assert audited(study) == again
    assert list(sentences([], None, again)) == []
    records = [record_of(trial) for trial in study.trials]
    assert any("5 pruned placements" in text for text in sentences(records, None, again))


class TightCard(Runner):
    """Runs out of memory wherever the longest prompt is tried."""

    def __init__(self, problem: Problem) -> None:
        self._inner = PredictedRunner(problem.spec)
        self.prompts: list[int] = []

    def run(self, request: TrialRequest) -> Outcome:
        self.prompts.append(request.workload.prompt_tokens)
        if request.workload.output_tokens == 1:
            return Outcome(
                Status.OUT_OF_MEMORY,
                Basis.MEASURED,
                "out of memory",
                out_of_memory_device="cuda:0",
                out_of_memory_bytes=1,
            )
        return self._inner.run(request)

    def close(self) -> None:
        """Nothing is held."""


def test_a_close_call_has_to_pass_the_longest_prompt_first() -> None:
    """Cards of a few MiB are within 300 MiB of their budget, whatever is on them."""
    emulated = small_problem(5, 4, basis=Basis.MEASURED)
    machine = replace(emulated.machine, emulated=False)
    space = replace(emulated.space, machine=machine)
    problem = replace(emulated, space=space)
    runner = TightCard(problem)
    settings = replace(SETTINGS, n_trials=1, timeout_s=0.5)
    study = searched(problem, runner, settings)
    assert set(runner.prompts) == {problem.workload.context_tokens - 1}
    statuses = {trial.user_attrs.get("status") for trial in study.trials}
    assert Status.OUT_OF_MEMORY.value in statuses
    assert Status.OK.value not in statuses
