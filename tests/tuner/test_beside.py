"""Two studies' best measured in turn: who is asked when, what is compared, and with what error."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.bench.request import TrialRequest
from autoplace.tuner.beside import (
    COLUMNS,
    NUM_ROUNDS,
    Tuned,
    markdown,
    measure_in_turn,
    rows,
    sentence,
)
from autoplace.tuner.candidate import Problem
from autoplace.tuner.drift import Reading
from autoplace.tuner.sampler import SamplerSettings
from autoplace.tuner.search import SearchSettings
from autoplace.tuner.session import Session, tune
from autoplace.tuner.summary import summarise
from tests.tuner.problems import Scripted, small_problem, study_of
from tests.tuner.trials import add_measured

SETTINGS = SearchSettings(n_trials=2, sampler=SamplerSettings(n_startup_trials=2))


def searched(folder: Path, dtype: str) -> Tuned:
    """A small study against the cost model."""
    problem = replace(small_problem(5, 4), dtype=dtype)
    session = Session(folder / "studies.db", folder / "studies", SETTINGS)
    return Tuned(problem, tune(problem, session, lambda: Scripted(problem.spec)).summary)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuned, Tuned]:
    """They differ in the dtype of what no rule replaces."""
    folder = tmp_path_factory.mktemp("beside")
    return searched(folder, "bfloat16"), searched(folder, "float32")


def test_the_best_of_each_is_measured_round_after_round(pair: tuple[Tuned, Tuned]) -> None:
    runner = Scripted(pair[0].problem.spec)
    asked: list[str] = []
    first, second = measure_in_turn(pair, runner, on_measure=asked.append)
    assert [request.dtype for request in runner.requests] == ["bfloat16", "float32"] * NUM_ROUNDS
    assert len(asked) == 2 * NUM_ROUNDS
    for study, request in zip((first, second), runner.requests, strict=False):
        best = study.summary.best
        assert best is not None
        assert request.rules == best.record.rules
        assert request.settings == best.record.settings
        assert not request.measure.quality
        assert [reading.trial for reading in study.readings] == [best.record.number] * NUM_ROUNDS


def test_a_measurement_that_fails_is_left_out(pair: tuple[Tuned, Tuned]) -> None:
    def fails(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        return Outcome(Status.CONTENDED, outcome.basis, "busy") if run == 3 else outcome

    runner = Scripted(pair[0].problem.spec, fails)
    first, second = measure_in_turn(pair, runner, on_measure=lambda engine: None)
    assert (len(first.readings), len(second.readings)) == (NUM_ROUNDS - 1, NUM_ROUNDS)


def tuned(problem: Problem, *readings: tuple[float, float]) -> Tuned:
    """A study of one trial, with readings (decode rate, prefill seconds) taken in turn."""
    study = study_of(problem)
    number = add_measured(study, 7.0, 1.0)
    return Tuned(
        problem,
        summarise(study, problem.machine, problem.workload),
        tuple(Reading(number, turn, *values) for turn, values in enumerate(readings)),
    )


PROBLEM = small_problem(5, 4, basis=Basis.EMULATED)
"""Its workload decodes 7 tokens behind the prompt."""


def test_the_comparison_is_of_means_with_two_standard_errors() -> None:
    """By hand: 1.0 + 7 / 7 = 2 s; the second 3.9 and 4.1 s, so that the noise pooled over two
    degrees of freedom is sqrt(2 · 0.025² / 2) = 0.025, and sqrt(1/2 + 1/2) is 1."""
    first = tuned(PROBLEM, (7.0, 1.0), (7.0, 1.0))
    second = tuned(PROBLEM, (7.0, 2.9), (7.0, 3.1))
    said = sentence(first, second)
    assert "builtin 2.00 s and builtin 4.00 s: builtin is 2.000 ± 0.100 times as fast" in said
    assert "measured in turn (emulated)." in said
    assert "within the noise" not in said


def test_a_difference_that_is_no_larger_than_its_error_is_within_the_noise() -> None:
    first = tuned(PROBLEM, (7.0, 1.0), (7.0, 1.4))
    second = tuned(PROBLEM, (7.0, 1.1), (7.0, 1.5))
    assert sentence(first, second).endswith(": that is within the noise.")


def test_without_readings_of_both_nothing_is_compared() -> None:
    measured, lost = tuned(PROBLEM, (7.0, 1.0)), tuned(PROBLEM)
    assert sentence(measured, lost) == sentence(lost, measured)
    assert "are not compared" in sentence(measured, lost)
    assert lost.request_s == pytest.approx(2.0)  # of the study's own figures
    assert rows([lost])[0][2] == "nan"


def test_the_page_has_the_sentence_and_a_row_for_each() -> None:
    pair = tuned(PROBLEM, (7.0, 1.0), (7.0, 1.0)), tuned(PROBLEM, (3.5, 2.0), (3.5, 2.0))
    page = markdown(pair)
    assert page.startswith("# small on small, short: builtin and builtin\n")
    assert sentence(*pair) in page
    assert "| " + " | ".join(COLUMNS) + " |" in page
    for row in rows(pair):
        assert "| " + " | ".join(row) + " |" in page
    assert [row[2] for row in rows(pair)] == ["7", "3.5"]
    assert [row[5] for row in rows(pair)] == ["2 times", "2 times"]
