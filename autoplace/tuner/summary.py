"""What a study found: the front, the pick, its gain over the obvious, and how sure that is."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import optuna

from autoplace.hardware.machine import Machine
from autoplace.placement.placement import Choice, Placement
from autoplace.tuner.audit import Audited, audited
from autoplace.tuner.drift import SENTINEL, drift, readings
from autoplace.tuner.learn import LEARNED
from autoplace.tuner.pareto import candidates, pareto_front
from autoplace.tuner.records import TrialRecord, record_of
from autoplace.tuner.remeasure import (
    Noise,
    Remeasured,
    final_figures,
    gain,
    is_fitted,
    to_remeasure,
)
from autoplace.tuner.study import KEY
from autoplace.workload import Workload

ENDED = "ended"
"""Study attribute: why the last search of the study ended."""
NOTES = "notes"
"""Study attribute: what the last call could not compare with, and why."""


@dataclass(frozen=True)
class Summary:
    """Everything that the table, the files and the page say of a study."""

    key: Mapping[str, object]
    """The study's key: hardware, model, workload, engine, basis, …"""
    machine: Machine
    workload: Workload
    records: tuple[TrialRecord, ...]
    """All trials, the failed and pruned ones too."""
    front: tuple[Remeasured, ...]
    """Points of the front with their final figures, the best for the workload first."""
    baseline: Remeasured | None
    """The best obvious placement, measured in turn with the front."""
    best: Remeasured | None
    """The pick: the least time for the workload. None if nothing was measured."""
    noise: Noise
    drift: float | None
    ended: str
    learned: Mapping[str, object] | None = None
    """What the time model learned: factors, errors, doubts."""
    fitted: Remeasured | None = None
    """llama.cpp's `--fit`, measured in turn with the front."""
    audit: tuple[Audited, ...] = ()
    """Pruned placements that were run to see."""
    notes: tuple[str, ...] = ()
    """What could not be compared with, and why; what was doubtful in the user's line."""

    @property
    def basis(self) -> str:
        return str(self.key["basis"])

    @property
    def gain(self) -> tuple[float, float] | None:
        """Times less a request takes than with the best obvious placement, and the error."""
        if self.best is None or self.baseline is None:
            return None
        return gain(self.best, self.baseline, self.noise, self.workload)

    @property
    def fit_gain(self) -> tuple[float, float] | None:
        """The same against llama.cpp's own `--fit`; None where that was not measured."""
        if self.best is None or self.fitted is None:
            return None
        return gain(self.best, self.fitted, self.noise, self.workload)

    @property
    def search_s(self) -> float:
        """Seconds that all trials took."""
        return sum(record.duration_s for record in self.records)

    @property
    def counts(self) -> Mapping[str, int]:
        """Trials by how they ended: `ok`, `predicted_not_to_fit`, `out_of_memory`, …"""
        return Counter(record.status for record in self.records if record.status)


def summarise(study: optuna.Study, machine: Machine, workload: Workload) -> Summary:
    """Read a study. Nothing is written or measured."""
    records = tuple(record_of(trial) for trial in study.get_trials(deepcopy=False))
    chosen = to_remeasure(records, workload)
    figures, noise = final_figures(study, chosen, workload)
    on_front = {record.number for record in pareto_front(candidates(records))}
    obvious = [one for one in figures if one.record.is_obvious]
    ranked = sorted(figures, key=lambda one: one.request_s(workload))
    sentinels = readings(study, SENTINEL)
    by_number = {record.number: record for record in records}
    return Summary(
        key=study.user_attrs[KEY],
        machine=machine,
        workload=workload,
        records=records,
        front=tuple(one for one in ranked if one.record.number in on_front),
        baseline=min(obvious, key=lambda one: one.request_s(workload), default=None),
        best=ranked[0] if ranked else None,
        noise=noise,
        drift=drift(by_number[sentinels[0].trial], sentinels) if sentinels else None,
        ended=str(study.user_attrs.get(ENDED, "it has not ended")),
        learned=study.user_attrs.get(LEARNED),
        fitted=next((one for one in figures if is_fitted(one.record)), None),
        audit=audited(study),
        notes=tuple(study.user_attrs.get(NOTES, ())),
    )


def describe_placement(placement: Placement) -> str:
    """`layers cpu 6; experts cpu 5; KLinearCPUInfer, KExpertsCPU; lm_head cpu KLinearTorch`."""
    layers = Counter(layer.device for layer in placement.layers)
    experts = Counter(layer.experts.device for layer in placement.layers if layer.experts)
    parts = [f"layers {_counts(layers)}"]
    if experts:
        parts.append(f"experts {_counts(experts)}")
    for group in ("attention", "mlp", "experts"):
        choices = {getattr(layer, group) for layer in placement.layers} - {None}
        if choices:
            parts.append(f"{group} {_choices(choices)}")
    parts.append(f"lm_head {placement.lm_head.device} {_short(placement.lm_head)}")
    return "; ".join(parts)


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{device} {count}" for device, count in sorted(counts.items()))


def _choices(choices: set[Choice]) -> str:
    """One operator, or one for each device."""
    names = {_short(choice) for choice in choices}
    if len(names) == 1:
        return names.pop()
    return ", ".join(
        f"{choice.device} {_short(choice)}" for choice in sorted(choices, key=lambda c: c.device)
    )


def _short(choice: Choice) -> str:
    return f"{choice.operator} {choice.num_bits}" if choice.num_bits else choice.operator
