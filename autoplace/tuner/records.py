"""How placements and outcomes are stored with a trial: as plain JSON, read back typed.

What comes out of a database is data from elsewhere: parsed field by field, never unpickled.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from autoplace.bench.metrics import Basis, DeviceBytes, Metrics, Outcome, Quality, Spread, Status
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings

Json = dict[str, Any]


def placement_to_json(placement: Placement) -> Json:
    return asdict(placement)


def placement_from_json(data: Mapping[str, Any]) -> Placement:
    return Placement(
        engine=str(data["engine"]),
        layers=tuple(
            LayerPlacement(
                device=str(layer["device"]),
                attention=Choice(**layer["attention"]),
                mlp=Choice(**layer["mlp"]) if layer["mlp"] else None,
                experts=Choice(**layer["experts"]) if layer["experts"] else None,
            )
            for layer in data["layers"]
        ),
        lm_head=Choice(**data["lm_head"]),
        version=int(data["version"]),
    )


def outcome_to_json(outcome: Outcome) -> Json:
    data = asdict(outcome)
    data["status"] = outcome.status.value
    data["basis"] = outcome.basis.value
    return data


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    metrics = data.get("metrics")
    return Outcome(
        status=Status(data["status"]),
        basis=Basis(data["basis"]),
        reason=data["reason"],
        metrics=_metrics(metrics) if metrics else None,
        out_of_memory_device=data.get("out_of_memory_device"),
        out_of_memory_bytes=data.get("out_of_memory_bytes"),
        environment=data.get("environment", {}),
    )


def _metrics(data: Mapping[str, Any]) -> Metrics:
    quality = data.get("quality")
    return Metrics(
        decode_tok_per_s=Spread(**data["decode_tok_per_s"]),
        prefill_latency_s=Spread(**data["prefill_latency_s"]),
        prefill_tok_per_s=data["prefill_tok_per_s"],
        bytes_by_device={
            name: DeviceBytes(**parts) for name, parts in data["bytes_by_device"].items()
        },
        quality=Quality(**quality) if quality else None,
        load_s=data["load_s"],
        bytes_per_token=data["bytes_per_token"],
        role_seconds=data.get("role_seconds", {}),
    )


@dataclass(frozen=True)
class TrialRecord:
    """One finished trial of a study, typed."""

    number: int
    state: TrialState
    origin: str
    key: str
    placement: Placement | None
    settings: RunSettings | None
    rules: str
    predicted_bytes: Mapping[str, int]
    """Peak by device."""
    constraints: Mapping[str, float]
    outcome: Outcome | None
    """None for trials that were never run."""
    status: str
    """A value of `Status`, or why the trial was never run; empty while it waits."""
    reason: str
    params: Mapping[str, int | str]
    duration_s: float
    predicted: Mapping[str, float] = field(default_factory=dict)
    """`decode_tok_per_s` and `prefill_latency_s` as the time model said before it was run."""

    @property
    def measured(self) -> bool:
        """Ran to the end and has valid numbers."""
        return self.state is TrialState.COMPLETE

    @property
    def feasible(self) -> bool:
        return all(value <= 0 for value in self.constraints.values())

    @property
    def metrics(self) -> Metrics:
        assert self.outcome is not None, self.number
        assert self.outcome.metrics is not None, self.number
        return self.outcome.metrics

    @property
    def is_obvious(self) -> bool:
        return self.origin.startswith(OBVIOUS)


OBVIOUS = "obvious: "
PREDICTED_BEST = "predicted best"
CORRECTED_BEST = "corrected best"
"""By the time model after it was corrected by the trials so far."""
SAMPLED = "sampled"
EARLIER = "earlier study"


def record_of(trial: FrozenTrial) -> TrialRecord:
    """The trial's attributes, typed. Attributes that are not there yet come out empty."""
    attrs = trial.user_attrs
    placement = attrs.get("placement")
    settings = attrs.get("settings")
    outcome = attrs.get("outcome")
    return TrialRecord(
        number=trial.number,
        state=trial.state,
        origin=attrs.get("origin", SAMPLED),
        key=attrs.get("key", ""),
        placement=placement_from_json(placement) if placement else None,
        settings=RunSettings(**settings) if settings else None,
        rules=attrs.get("rules", ""),
        predicted_bytes=attrs.get("predicted_bytes", {}),
        constraints=trial.constraints,
        outcome=outcome_from_json(outcome) if outcome else None,
        status=attrs.get("status", ""),
        reason=attrs.get("reason", ""),
        params=trial.params,
        duration_s=trial.duration.total_seconds() if trial.duration else 0.0,
        predicted=attrs.get("predicted", {}),
    )
