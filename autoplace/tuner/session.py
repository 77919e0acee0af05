"""One call of `tune`: the study is opened or resumed, searched, measured again, and published."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import optuna

from autoplace import __version__
from autoplace.bench.metrics import Basis, Status
from autoplace.errors import AutoplaceError, NothingFeasibleError
from autoplace.predict.calibration import Calibration
from autoplace.tuner.audit import audit_prunes
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.first_placements import UserRules
from autoplace.tuner.learn import learn, learned_calibration, started_from
from autoplace.tuner.progress import SearchProgress
from autoplace.tuner.publish import Published, publish
from autoplace.tuner.remeasure import remeasure, to_remeasure
from autoplace.tuner.report import nearest_miss
from autoplace.tuner.runner import Runner
from autoplace.tuner.sampler import make_sampler
from autoplace.tuner.search import Search, SearchSettings
from autoplace.tuner.storage import BUSY_TIMEOUT_S, exclusively, open_storage, storage_errors
from autoplace.tuner.study import StudyKey, ancestors, find_study, open_study
from autoplace.tuner.summary import ENDED, NOTES, Summary, summarise

INTERRUPTED = "it was interrupted"


@dataclass(frozen=True)
class Session:
    """What a call of `tune` works with besides the problem."""

    storage_path: Path
    study_dir: Path
    search: SearchSettings = field(default_factory=SearchSettings)
    user_rules: UserRules | None = None
    busy_timeout_s: float = BUSY_TIMEOUT_S


@dataclass(frozen=True)
class Result:
    """How a call of `tune` ended."""

    summary: Summary
    published: Published
    interrupted: bool
    learned: Calibration | None = None
    """The time model's constants as the trials corrected them."""


def study_key(problem: Problem, *, max_kl: float | None) -> StudyKey:
    graphs = "" if problem.cuda_graphs == "auto" else f", cuda_graphs={problem.cuda_graphs}"
    interleave = "" if problem.interleave == "auto" else f", interleave={problem.interleave}"
    return StudyKey.of(
        problem.space,
        engine_version=f"{__version__}{graphs}{interleave}{_llama_cpp(problem)}",
        dtype=problem.dtype,
        basis=problem.basis,
        max_kl=max_kl,
    )


def _llama_cpp(problem: Problem) -> str:
    """What makes figures of llama.cpp comparable: what measured them, and what was kept."""
    study = problem.llama_cpp
    if study is None:
        return ""
    kept = "".join(f", -ot {pattern}={buffer}" for pattern, buffer in study.kept)
    return f", {study.tools.measurer} {study.tools.version}{kept}"


def tune(problem: Problem, session: Session, make_runner: Callable[[], Runner]) -> Result:
    """Search, or go on searching. Raise `NothingFeasibleError` if nothing could be measured.

    Ctrl-C ends the search; what it has found until then is written, and the same call goes on.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with storage_errors(session.storage_path):
        storage = open_storage(session.storage_path, busy_timeout_s=session.busy_timeout_s)
        key = study_key(problem, max_kl=session.search.max_kl)
        sampler = make_sampler(session.search.sampler, num_trials=0)
        study = open_study(storage, key, sampler)
        problem = started_from(study, problem)
        try:
            ended = _search(problem, session, study, make_runner, ancestors(storage, key))
        except KeyboardInterrupt:
            ended = INTERRUPTED
        study.set_user_attr(ENDED, ended)
        learn(problem, study)
        summary = summarise(study, problem.machine, problem.workload)
    published = publish(summary, problem.spec, session.study_dir)
    if summary.best is None and ended is not INTERRUPTED:
        raise NothingFeasibleError(_nothing(summary))
    return Result(
        summary, published, interrupted=ended is INTERRUPTED, learned=learned_calibration(study)
    )


def report(problem: Problem, session: Session) -> Result:
    """The page of a study that is there, written again. Raise `AutoplaceError` if there is none."""
    if not session.storage_path.exists():
        raise AutoplaceError(f"there is no studies database {session.storage_path}; run tune first")
    with storage_errors(session.storage_path):
        storage = open_storage(session.storage_path, busy_timeout_s=session.busy_timeout_s)
        key = study_key(problem, max_kl=session.search.max_kl)
        study = find_study(storage, key)
        if study is None:
            raise AutoplaceError(
                f"there is no study of {key.model} on {key.hardware} for {key.workload} "
                f"({key.basis}) in {session.storage_path}; run tune with the same words first"
            )
        summary = summarise(study, problem.machine, problem.workload)
    return Result(summary, publish(summary, problem.spec, session.study_dir), interrupted=False)


def _search(
    problem: Problem,
    session: Session,
    study: optuna.Study,
    make_runner: Callable[[], Runner],
    earlier: list[optuna.Study],
) -> str:
    """Search and measure the front again; the runner is closed whatever happens."""
    settings = session.search
    preparer = Preparer(problem)
    with SearchProgress(
        problem.workload, n_trials=settings.n_trials, timeout_s=settings.timeout_s
    ) as progress:
        runner = make_runner()
        try:
            search = Search(
                problem,
                study,
                runner,
                settings,
                listener=progress,
                preparer=preparer,
                claim=lambda: exclusively(session.storage_path),
            )
            progress.resume(summarise(study, problem.machine, problem.workload).best)
            search.enqueue_first(user_rules=session.user_rules, earlier=earlier)
            if problem.llama_cpp is not None:
                study.set_user_attr(NOTES, list(dict.fromkeys(problem.llama_cpp.notes)))
            ended = search.run()
            if settings.audit_prunes:
                audit_prunes(
                    problem,
                    study,
                    runner,
                    preparer,
                    count=settings.audit_prunes,
                    seed=settings.sampler.seed,
                )
            if problem.basis is not Basis.PREDICTED:
                summary = summarise(study, problem.machine, problem.workload)
                chosen = to_remeasure(summary.records, problem.workload)
                remeasure(problem, study, runner, preparer, chosen, on_measure=progress.remeasuring)
            return ended
        finally:
            runner.close()


def _nothing(summary: Summary) -> str:
    counts = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in summary.counts.items())
    parts = [f"no placement could be measured ({counts or 'no trials'}; {summary.ended})"]
    parts += [sentence.rstrip(".") for sentence in nearest_miss(summary)]
    if summary.counts.get(Status.CONTENDED.value):
        parts.append(
            "call again when the machine is quiet, or accept noise with measure.max_wait_share=1"
        )
    return "; ".join(parts)
