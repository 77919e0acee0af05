"""What a study teaches the time model: refitted to its trials, and searched again corrected."""

from collections.abc import Iterator, Sequence
from typing import Any

import optuna

from autoplace.predict.best import best_placements
from autoplace.predict.calibrate import Observation, Refit, refit
from autoplace.predict.calibration import Calibration, calibration_from_json, calibration_to_json
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.first_placements import FirstPlacement
from autoplace.tuner.records import CORRECTED_BEST, TrialRecord, record_of

LEARNED = "learned"
"""Study attribute: the calibration out of its trials, with its doubts."""
STARTED_FROM = "started_from"
"""Study attribute: the calibration that its predictions were made with."""
LEARN_EVERY = 6
NUM_CORRECTED = 2
WORTH_CORRECTING = 0.02
"""Mean error of the predictions from which a corrected model is worth a search."""


def started_from(study: optuna.Study, problem: Problem) -> Problem:
    """The problem with the calibration that the study began with, whatever has come since."""
    kept = study.user_attrs.get(STARTED_FROM)
    if kept is None:
        study.set_user_attr(STARTED_FROM, calibration_to_json(problem.calibration))
        return problem
    return problem.calibrated(calibration_from_json(kept))


def observations(records: Sequence[TrialRecord]) -> list[Observation]:
    """Measured placements as the time model takes them."""
    return [
        Observation(
            record.placement,
            record.settings,
            1 / record.metrics.decode_tok_per_s.median,
            record.metrics.prefill_latency_s.median,
            f"trial {record.number}",
        )
        for record in records
        if record.measured and record.placement is not None and record.settings is not None
    ]


def learn(problem: Problem, study: optuna.Study) -> Refit | None:
    """Refit to all measured trials and store what came of it; None without any."""
    seen = observations([record_of(trial) for trial in study.get_trials(deepcopy=False)])
    if not seen:
        return None
    learned = refit(problem.latency_model, seen)
    study.set_user_attr(LEARNED, _attribute(learned))
    return learned


def learned_calibration(study: optuna.Study) -> Calibration | None:
    """What was stored last."""
    kept = study.user_attrs.get(LEARNED)
    return calibration_from_json(kept["calibration"]) if kept else None


def corrected_best(
    problem: Problem, study: optuna.Study, preparer: Preparer, num_measured: int
) -> Iterator[FirstPlacement]:
    """Every few measured trials: the best by the corrected model, where it differs from the first.

    Which are known already is the caller's to say. Depends on the study alone, so that a study in
    two calls goes as in one.
    """
    if num_measured == 0 or num_measured % LEARN_EVERY:
        return
    learned = learn(problem, study)
    if learned is None or not _is_worth_it(learned):
        return
    model = problem.calibrated(learned.calibration).latency_model
    for one in best_placements(
        problem.space,
        model,
        preparer.overrun_bytes,
        count=NUM_CORRECTED + num_measured,
        seed=num_measured,
        dtype_bytes=problem.dtype_bytes,
    ):
        yield FirstPlacement(CORRECTED_BEST, one.placement, one.settings)


def _is_worth_it(learned: Refit) -> bool:
    factors = [*learned.decode.factors.values(), *learned.prefill.factors.values()]
    return any(abs(factor - 1) > WORTH_CORRECTING for factor in factors)


def _attribute(learned: Refit) -> dict[str, Any]:
    return {
        "calibration": calibration_to_json(learned.calibration),
        "decode_factors": dict(learned.decode.factors),
        "prefill_factors": dict(learned.prefill.factors),
        "decode_error": learned.decode.error,
        "prefill_error": learned.prefill.error,
        "doubts": list(learned.doubts),
    }
