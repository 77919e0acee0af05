"""Who runs a trial, so that trials whose driver is gone can be told from running ones.

Optuna's heartbeat does not work with ask and tell, and TPE counts running trials.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import optuna
import psutil
from optuna.trial import FrozenTrial, TrialState

OWNER = "owner"
UNOWNED_GRACE = timedelta(seconds=60)
"""A trial is created and owned in two steps; one without an owner is given this long."""


@dataclass(frozen=True)
class Owner:
    """One process of one boot of one host. A pid alone comes again."""

    host: str
    boot_id: str
    pid: int
    start_time: float

    @classmethod
    def current(cls) -> "Owner":
        return cls(socket.gethostname(), _boot_id(), os.getpid(), psutil.Process().create_time())

    @classmethod
    def of(cls, trial: FrozenTrial) -> "Owner | None":
        stored = trial.user_attrs.get(OWNER)
        return cls(**stored) if isinstance(stored, Mapping) else None

    def as_attribute(self) -> dict[str, object]:
        return asdict(self)

    def is_gone(self) -> bool:
        """Whether the process surely runs no more. Of another host nothing is known: False."""
        if self.host != socket.gethostname():
            return False
        if self.boot_id != _boot_id():
            return True
        try:
            started = psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return True
        return abs(started - self.start_time) > 1.0


def fail_orphans(study: optuna.Study) -> list[int]:
    """Fail running trials whose owner is gone, with that reason; return their numbers."""
    failed = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        owner = Owner.of(trial)
        if owner.is_gone() if owner else _is_stale(trial):
            _fail(study, trial, owner)
            failed.append(trial.number)
    return failed


def _fail(study: optuna.Study, trial: FrozenTrial, owner: Owner | None) -> None:
    storage = study._storage
    who = f"pid {owner.pid}" if owner else "its driver"
    storage.set_trial_user_attr(trial._trial_id, "status", "lost")
    storage.set_trial_user_attr(trial._trial_id, "reason", f"{who} ended before the trial did")
    study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _is_stale(trial: FrozenTrial) -> bool:
    started = trial.datetime_start
    return started is not None and datetime.now() - started > UNOWNED_GRACE


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else str(int(psutil.boot_time()))
