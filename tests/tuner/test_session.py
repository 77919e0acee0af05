"""A whole call of `tune` against the cost model: what it leaves behind, and how it fails."""

import json
import random
import re
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoplace.bench.metrics import Basis, Outcome
from autoplace.bench.request import TrialRequest
from autoplace.errors import AutoplaceError, NothingFeasibleError
from autoplace.placement.space import SearchSpace
from autoplace.rules.header import sha256_of
from autoplace.rules.match import assign
from autoplace.rules.read import load_rules
from autoplace.rules.read_back import read_back
from autoplace.tuner.candidate import Problem
from autoplace.tuner.publish import study_folder
from autoplace.tuner.runner import Runner
from autoplace.tuner.sampler import SamplerSettings
from autoplace.tuner.search import SearchSettings
from autoplace.tuner.session import Result, Session, report, tune
from autoplace.tuner.table import summary_json
from tests.tuner.problems import Scripted, small_machine, small_problem

SETTINGS = SearchSettings(n_trials=5, sampler=SamplerSettings(n_startup_trials=2))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small_problem(5, 4)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "studies.db", tmp_path / "studies", SETTINGS)


def noisy(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
    """Passes predicted figures off as measured, each run faster by up to a hundredth."""
    metrics = outcome.metrics
    if metrics is None:
        return outcome
    faster = 1 + 0.01 * random.Random(run).random()
    decode = metrics.decode_tok_per_s
    return replace(
        outcome,
        metrics=replace(metrics, decode_tok_per_s=replace(decode, median=decode.median * faster)),
    )


def call(
    problem: Problem,
    session: Session,
    happens: Callable[[int, TrialRequest, Outcome], Outcome] = noisy,
) -> Result:
    def runner() -> Runner:
        return Scripted(problem.spec, happens)

    return tune(problem, session, runner)


@pytest.fixture(scope="module")
def found(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One finished call, for the tests that only look at what it left behind."""
    folder = tmp_path_factory.mktemp("found")
    return call(problem, Session(folder / "studies.db", folder / "studies", SETTINGS))


def test_the_best_rule_file_means_the_placement_that_was_picked(
    problem: Problem, found: Result
) -> None:
    best = found.summary.best
    assert best is not None
    assert found.published.best is not None
    rules = load_rules(found.published.best)
    assert rules.body == best.record.rules
    assert rules.header is not None
    assert rules.header.body_sha256 == sha256_of(best.record.rules)
    assert rules.header.settings == best.record.settings
    assert rules.header.basis == "predicted"
    assignment = assign(rules.rules, problem.spec, engine="builtin")
    assert read_back(assignment, problem.spec) == best.record.placement


def test_the_pick_takes_the_least_time_of_the_front(found: Result) -> None:
    summary = found.summary
    assert summary.best is not None
    times = [one.request_s(summary.workload) for one in summary.front]
    assert summary.best.request_s(summary.workload) == min(times)


def test_the_front_is_measured_again_when_it_is_measured_at_all(session: Session) -> None:
    problem = small_problem(5, 4, basis=Basis.EMULATED)
    summary = call(problem, session).summary
    assert summary.baseline is not None
    assert {one.n for one in summary.front} == {2}
    assert summary.baseline.n == 2
    assert summary.noise.decode > 0
    gain = summary.gain
    assert gain is not None
    assert gain[1] > 0 or summary.best is summary.baseline


def test_what_is_predicted_is_kept_apart_and_labelled(found: Result) -> None:
    published = found.published
    assert published.folder.parts[-4:] == ("small", "small", "short", "predicted")
    assert "Nothing was measured" in published.report.read_text()


def test_nothing_that_is_committed_has_a_path_or_a_host_name(found: Result) -> None:
    import socket

    published = found.published
    files = [path for path in published.folder.rglob("*") if path.is_file()]
    assert len(files) >= 5
    for path in files:
        text = path.read_text()
        assert str(found.published.folder.parents[3]) not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def test_the_page_needs_no_other_file_and_its_plots_are_well_formed(found: Result) -> None:
    page = found.published.page.read_text()
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        ElementTree.fromstring(plot)
    assert not re.search(r'(src|href)="http', page.replace("xlink:href", ""))


def test_the_report_says_where_everything_ended(found: Result) -> None:
    report_text = found.published.report.read_text()
    for words in ("# small on small, short (predicted)", "| trial |", "Obvious placements", "5 ok"):
        assert words in report_text


def test_points_that_left_the_front_are_removed_and_other_files_stay(
    problem: Problem, session: Session
) -> None:
    published = call(problem, session).published
    stale = published.folder / "pareto" / "trial-999.rules.yaml"
    mine = published.folder / "pareto" / "notes.md"
    stale.write_text("old")
    mine.write_text("mine")
    call(problem, session)
    assert not stale.exists()
    assert mine.exists()


def test_report_writes_the_page_of_a_study_again(problem: Problem, session: Session) -> None:
    published = call(problem, session).published
    page = published.page.read_text()
    published.page.unlink()
    assert report(problem, session).published.page.read_text() == page


def test_report_finds_a_study_whatever_its_space_and_guard(
    problem: Problem, session: Session
) -> None:
    guarded = replace(session, search=replace(SETTINGS, max_kl=0.5))
    call(problem, guarded)
    other = replace(problem, space=replace(problem.space, kv_types=("f16", "bf16")))
    assert report(other, session).summary.key["max_kl"] == 0.5


def test_report_of_a_study_that_is_not_there_says_what_to_do(
    problem: Problem, session: Session
) -> None:
    with pytest.raises(AutoplaceError, match="run tune first"):
        report(problem, session)
    call(small_problem(8), session)
    with pytest.raises(AutoplaceError, match=r"no study of small on small for short \(predicted\)"):
        report(problem, session)


def test_a_machine_on_which_nothing_fits_is_a_no_with_the_nearest_miss(session: Session) -> None:
    problem = small_problem(0.1, 0.1)
    session = replace(session, search=replace(SETTINGS, max_pruned_in_a_row=15))
    with pytest.raises(
        NothingFeasibleError, match=r"nearest miss is trial \d+, over by .* on cuda"
    ):
        call(problem, session)
    assert list(session.study_dir.rglob("report.md"))
    assert not list(session.study_dir.rglob("best.rules.yaml"))


def test_a_locked_database_ends_the_call_with_one_line(problem: Problem, session: Session) -> None:
    call(problem, session)
    other = sqlite3.connect(session.storage_path)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(AutoplaceError, match="another process has kept it locked"):
        call(problem, replace(session, busy_timeout_s=0.05))
    other.rollback()
    other.close()
    assert call(problem, session).summary.counts["ok"] == 5


def test_a_changed_space_is_a_new_study_that_starts_from_the_old_ones_trials(
    problem: Problem, session: Session
) -> None:
    call(problem, session)
    wider = replace(problem, space=replace(problem.space, kv_types=("f16", "bf16")))
    summary = call(wider, session).summary
    assert "earlier study" in {record.origin for record in summary.records}


def test_another_machine_is_another_study_without_the_old_ones_trials(
    problem: Problem, session: Session
) -> None:
    call(problem, session)
    space: SearchSpace = replace(problem.space, machine=small_machine(4, 3.5))
    summary = call(replace(problem, space=space), session).summary
    assert "earlier study" not in {record.origin for record in summary.records}


def test_the_json_document_is_json_and_names_the_files(found: Result) -> None:
    document = json.loads(json.dumps(summary_json(found.summary, found.published)))
    assert Path(document["files"]["rules"]).exists()
    assert document["best"]["trial"] in [point["trial"] for point in document["front"]]


def test_an_unwritable_studies_folder_is_one_line_and_the_study_is_kept(
    problem: Problem, session: Session
) -> None:
    session.study_dir.write_text("a file in the way")
    with pytest.raises(AutoplaceError, match="cannot write"):
        call(problem, session)
    session.study_dir.unlink()
    assert call(problem, session).summary.counts["ok"] == 5


def test_the_runner_is_closed_whatever_happens(problem: Problem, session: Session) -> None:
    runners: list[Scripted] = []

    def fail(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        raise KeyboardInterrupt

    def make_runner() -> Runner:
        runners.append(Scripted(problem.spec, fail))
        return runners[-1]

    assert tune(problem, session, make_runner).interrupted
    assert runners[0].closed


def test_two_workloads_have_two_folders(problem: Problem, tmp_path: Path) -> None:
    key = {"hardware": "a/../b", "model": "m", "workload": "w", "basis": "measured"}
    folder = study_folder(tmp_path, {**key, "engine": "builtin"})
    assert folder == tmp_path / "a-..-b" / "m" / "w"
    other = study_folder(tmp_path, {**key, "engine": "llama.cpp", "basis": "predicted"})
    assert other == tmp_path / "a-..-b" / "m" / "w" / "predicted" / "llama.cpp"
