"""One trial from its parameters to its end: what is stored with it, and what Optuna is told."""

from collections.abc import Mapping

import optuna
from optuna.trial import FrozenTrial, TrialState

from autoplace.bench.metrics import Outcome, Status
from autoplace.placement.space import SearchSpace, Value
from autoplace.tuner.candidate import Candidate, Problem
from autoplace.tuner.records import SAMPLED, outcome_to_json, placement_to_json

QUALITY = "mean_kl"
"""Constraint on quality; all others are named after a device and count bytes over its budget."""
PREDICTED_NOT_TO_FIT = "predicted not to fit"


def suggest(trial: optuna.Trial, space: SearchSpace) -> dict[str, Value]:
    """A value for every parameter of the space, from the queue or from the sampler."""
    values: dict[str, Value] = {}
    for parameter in space.parameters:
        if parameter.kind == "int":
            values[parameter.name] = trial.suggest_int(
                parameter.name, parameter.low, parameter.high
            )
        else:
            choice = trial.suggest_categorical(parameter.name, parameter.choices)
            assert isinstance(choice, (int, str)), choice
            values[parameter.name] = choice
    return values


def describe(trial: optuna.Trial, candidate: Candidate, problem: Problem) -> None:
    """Store what is tried, before it is tried: the dashboard shows it while it runs.

    The dashboard shows no constraints, so the bytes are attributes too.
    """
    plan = candidate.plan
    attributes = {
        "key": candidate.key,
        "origin": trial.user_attrs.get("origin", SAMPLED),
        "basis": problem.basis.value,
        "placement": placement_to_json(candidate.placement),
        "settings": candidate.settings.record(),
        "rules": candidate.rules,
        "predicted_bytes": {name: memory.peak for name, memory in plan.by_device.items()},
        "budget_bytes": {device.name: device.budget_bytes for device in problem.machine.devices},
        "overrun_bytes": dict(plan.overrun_bytes(problem.machine)),
        "predicted": _predicted(candidate, problem),
    }
    for name, value in attributes.items():
        if trial.user_attrs.get(name) != value:
            trial.set_user_attr(name, value)


def _predicted(candidate: Candidate, problem: Problem) -> dict[str, float]:
    prediction = problem.latency_model.predict(candidate.placement, candidate.settings)
    return {
        "decode_tok_per_s": prediction.decode_tok_per_s,
        "prefill_latency_s": prediction.prefill_latency_s,
    }


def tell_predicted_not_to_fit(
    study: optuna.Study, trial: optuna.Trial, overrun_bytes: Mapping[str, int]
) -> FrozenTrial:
    """Pruned before anything is built, with its constraint values: TPE learns from that."""
    _constrain(trial, overrun_bytes)
    _explain(trial, "predicted_not_to_fit", _over(overrun_bytes, PREDICTED_NOT_TO_FIT))
    return study.tell(trial, state=TrialState.PRUNED)


def tell_duplicate(study: optuna.Study, trial: optuna.Trial, earlier: FrozenTrial) -> FrozenTrial:
    """Pruned, with the constraint values of the trial that it repeats and no values of its own.

    Told so, TPE's density falls where it has been already, and it moves on.
    """
    _constrain(trial, earlier.constraints)
    trial.set_user_attr("duplicate_of", earlier.number)
    _explain(trial, "duplicate", f"the same placement and settings as trial {earlier.number}")
    return study.tell(trial, state=TrialState.PRUNED)


def tell_outcome(
    study: optuna.Study,
    trial: optuna.Trial,
    outcome: Outcome,
    overrun_bytes: Mapping[str, int],
    *,
    max_kl: float | None,
) -> FrozenTrial:
    """Complete with both values; pruned if out of memory; failed with its reason otherwise."""
    trial.set_user_attr("outcome", outcome_to_json(outcome))
    _explain(trial, outcome.status.value, outcome.reason)
    if outcome.status is Status.OUT_OF_MEMORY:
        _constrain(trial, _measured_overrun(outcome, overrun_bytes))
        return study.tell(trial, state=TrialState.PRUNED)
    if outcome.status is not Status.OK or outcome.metrics is None:
        return study.tell(trial, state=TrialState.FAIL)
    # It did run: whatever was predicted, it fits.
    _constrain(trial, {name: min(over, 0) for name, over in overrun_bytes.items()})
    metrics = outcome.metrics
    if max_kl is not None and metrics.quality is not None:
        trial.set_constraint(QUALITY, metrics.quality.mean_kl - max_kl)
    values = [metrics.decode_tok_per_s.median, metrics.prefill_latency_s.median]
    return study.tell(trial, values)


def tell_failed(study: optuna.Study, trial: optuna.Trial, status: str, reason: str) -> FrozenTrial:
    _explain(trial, status, reason)
    return study.tell(trial, state=TrialState.FAIL)


def _measured_overrun(outcome: Outcome, predicted: Mapping[str, int]) -> dict[str, int]:
    """Predicted bytes; the device that ran out is over by what its failed allocation missed.

    The prediction may know of more, since the model was not built to the end.
    """
    overrun = dict(predicted)
    device = outcome.out_of_memory_device
    if device is not None:
        overrun[device] = max(outcome.out_of_memory_bytes or 0, overrun.get(device, 0), 1)
    return overrun


def _constrain(trial: optuna.Trial, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        trial.set_constraint(name, value)


def _explain(trial: optuna.Trial, status: str, reason: str) -> None:
    trial.set_user_attr("status", status)
    trial.set_user_attr("reason", reason)


def _over(overrun_bytes: Mapping[str, int], what: str) -> str:
    over = [f"{name} by {over} B" for name, over in overrun_bytes.items() if over > 0]
    return f"{what}: over the budget of " + ", ".join(over)
