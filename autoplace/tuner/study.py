"""Which study a call of `tune` goes on with: by everything that makes its numbers comparable."""

import hashlib
import json
import warnings
from dataclasses import asdict, dataclass

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.study import StudyDirection

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Basis
from autoplace.hardware.fingerprint import fingerprint
from autoplace.placement.space import SearchSpace
from autoplace.workload import Workload

KEY = "key"
DIRECTIONS = (StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE)
METRIC_NAMES = ["decode_tok_per_s", "prefill_latency_s"]


@dataclass(frozen=True)
class StudyKey:
    """Two calls share a study if, and only if, all of this is equal. No path, no host name."""

    hardware: str
    machine: str
    """Fingerprint of the machine."""
    model: str
    model_fingerprint: str
    workload: str
    workload_lengths: tuple[int, int, int]
    engine: str
    engine_version: str
    dtype: str
    basis: str
    max_kl: float | None
    space: str
    """Hash of the search space."""

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        *,
        engine_version: str,
        dtype: str,
        basis: Basis,
        max_kl: float | None,
    ) -> "StudyKey":
        spec: ModelSpec = space.spec
        workload: Workload = space.workload
        return cls(
            hardware=space.machine.name,
            machine=fingerprint(space.machine),
            model=spec.name,
            model_fingerprint=spec.fingerprint,
            workload=workload.name,
            workload_lengths=(
                workload.prompt_tokens,
                workload.output_tokens,
                workload.context_tokens,
            ),
            engine=space.engine,
            engine_version=engine_version,
            dtype=dtype,
            basis=basis.value,
            max_kl=max_kl,
            space=space.hash,
        )

    @property
    def study_name(self) -> str:
        """Readable in the dashboard's list, and unique."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]
        parts = (self.hardware, self.model, self.workload, self.engine, self.basis, digest)
        return " ".join(parts)

    def as_attribute(self) -> dict[str, object]:
        attribute = asdict(self)
        attribute["workload_lengths"] = list(self.workload_lengths)
        return attribute

    def differs_in_space_only(self, attribute: object) -> bool:
        """Whether a stored key is this one but for the search space."""
        if not isinstance(attribute, dict) or attribute.get("space") == self.space:
            return False
        return {**attribute, "space": self.space} == self.as_attribute()


def open_study(
    storage: optuna.storages.BaseStorage, key: StudyKey, sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """The key's study, made if it is new."""
    study = optuna.create_study(
        storage=storage,
        study_name=key.study_name,
        sampler=sampler,
        directions=DIRECTIONS,
        load_if_exists=True,
    )
    if KEY not in study.user_attrs:
        with warnings.catch_warnings(category=ExperimentalWarning, action="ignore"):
            study.set_metric_names(METRIC_NAMES)
        study.set_user_attr(KEY, key.as_attribute())
    return study


def find_study(storage: optuna.storages.BaseStorage, key: StudyKey) -> optuna.Study | None:
    """The key's study; else the newest that differs only in what `report` cannot know.

    That is the search space, the quality guard and the engine's version. Nothing is written.
    """
    names = [key.study_name, *(summary.study_name for summary in _similar(storage, key))]
    known = set(optuna.get_all_study_names(storage))
    for name in names:
        if name in known:
            return optuna.load_study(study_name=name, storage=storage)
    return None


def _similar(
    storage: optuna.storages.BaseStorage, key: StudyKey
) -> list[optuna.study.StudySummary]:
    free = ("space", "max_kl", "engine_version")
    wanted = {name: value for name, value in key.as_attribute().items() if name not in free}
    summaries = [
        summary
        for summary in optuna.get_all_study_summaries(storage)
        if wanted.items() <= dict(summary.user_attrs.get(KEY, {})).items()
    ]
    return sorted(summaries, key=lambda summary: summary._study_id, reverse=True)


def ancestors(storage: optuna.storages.BaseStorage, key: StudyKey) -> list[optuna.Study]:
    """Studies of the same question over another search space, the newest first."""
    summaries = [
        summary
        for summary in optuna.get_all_study_summaries(storage)
        if key.differs_in_space_only(summary.user_attrs.get(KEY))
    ]
    summaries.sort(key=lambda summary: summary._study_id, reverse=True)
    return [optuna.load_study(study_name=s.study_name, storage=storage) for s in summaries]
