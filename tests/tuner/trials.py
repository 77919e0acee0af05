"""Studies made of trials that ended as a test says, without running anything."""

import optuna
from optuna.trial import TrialState, create_trial

from autoplace.bench.metrics import (
    Basis,
    DeviceBytes,
    Metrics,
    Outcome,
    Quality,
    Spread,
    Status,
)
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.tuner.drift import SENTINEL, Reading, append_reading
from autoplace.tuner.records import outcome_to_json, placement_to_json
from autoplace.tuner.remeasure import REMEASURED
from autoplace.workload import Workload

WORKLOAD = Workload("chat", prompt_tokens=128, output_tokens=33, context_tokens=161)
PLACEMENT = Placement(
    "builtin",
    (
        LayerPlacement(
            "cuda:0",
            Choice("cuda:0", "KLinearMarlin", 4),
            Choice("cuda:0", "KLinearTorch"),
            None,
        ),
        LayerPlacement(
            "cuda:0", Choice("cuda:0", "KLinearMarlin", 8), None, Choice("cpu", "KExpertsCPU")
        ),
    ),
    Choice("cpu", "KLinearCPUInfer"),
)
SETTINGS = RunSettings(num_threads=2, prefill_chunk=128)


def metrics(decode: float, prefill: float, *, mean_kl: float = 0.01) -> Metrics:
    return Metrics(
        decode_tok_per_s=Spread(decode, decode * 0.99, decode * 1.01, 3),
        prefill_latency_s=Spread(prefill, prefill, prefill, 3),
        prefill_tok_per_s=128 / prefill,
        bytes_by_device={"cpu": DeviceBytes(100, 20, 3, 130)},
        quality=Quality(mean_kl, 0.95, 64),
        load_s=1.5,
        bytes_per_token=1000,
    )


def outcome(decode: float, prefill: float) -> Outcome:
    return Outcome(Status.OK, Basis.MEASURED, metrics=metrics(decode, prefill))


def new_study() -> optuna.Study:
    return optuna.create_study(directions=["maximize", "minimize"])


def add_measured(
    study: optuna.Study,
    decode: float,
    prefill: float,
    *,
    origin: str = "sampled",
    over: float = -1.0,
) -> int:
    """A complete trial with these values; `over` is its one constraint. Returns its number."""
    trial = create_trial(
        state=TrialState.COMPLETE,
        values=[decode, prefill],
        user_attrs={
            "origin": origin,
            "key": f"{decode} {prefill}",
            "placement": placement_to_json(PLACEMENT),
            "settings": vars(SETTINGS),
            "rules": "[]",
            "status": "ok",
            "predicted_bytes": {"cpu": 131},
            "outcome": outcome_to_json(outcome(decode, prefill)),
        },
        system_attrs={"constraints:cpu": over},
    )
    study.add_trial(trial)
    return len(study.trials) - 1


def add_readings(
    study: optuna.Study, number: int, *values: tuple[float, float], session: int = 100
) -> None:
    for decode, prefill in values:
        append_reading(study, REMEASURED, Reading(number, session, decode, prefill))


def add_sentinels(study: optuna.Study, number: int, *values: tuple[float, float]) -> None:
    for decode, prefill in values:
        append_reading(study, SENTINEL, Reading(number, 100, decode, prefill))
