"""Trials whose driver is gone are failed, those of live drivers and of other hosts are not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from autoplace.tuner import owner as owner_module
from autoplace.tuner.owner import OWNER, Owner, fail_orphans


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(directions=["maximize", "minimize"])


@pytest.fixture
def gone_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def live_pid() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def ask_as(study: optuna.Study, owner: Owner) -> int:
    trial = study.ask()
    trial.set_user_attr(OWNER, owner.as_attribute())
    return trial.number


def test_a_trial_of_a_live_driver_goes_on(study: optuna.Study) -> None:
    ask_as(study, Owner.current())
    assert fail_orphans(study) == []
    assert study.trials[0].state is TrialState.RUNNING


def test_a_trial_of_a_driver_that_ended_fails_with_that_reason(
    study: optuna.Study, gone_pid: int
) -> None:
    number = ask_as(study, replace(Owner.current(), pid=gone_pid))
    assert fail_orphans(study) == [number]
    trial = study.trials[number]
    assert trial.state is TrialState.FAIL
    assert trial.user_attrs["reason"] == f"pid {gone_pid} ended before the trial did"


def test_a_pid_that_came_again_is_not_the_owner(study: optuna.Study, live_pid: int) -> None:
    number = ask_as(study, replace(Owner.current(), pid=live_pid, start_time=1.0))
    assert fail_orphans(study) == [number]


def test_a_trial_from_before_a_reboot_fails(study: optuna.Study) -> None:
    number = ask_as(study, replace(Owner.current(), boot_id="an earlier boot"))
    assert fail_orphans(study) == [number]


def test_of_another_hosts_driver_nothing_is_known(study: optuna.Study) -> None:
    ask_as(study, replace(Owner.current(), host="elsewhere", pid=1 << 22, boot_id="another"))
    assert fail_orphans(study) == []


def test_a_trial_without_an_owner_fails_after_its_grace(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = study.ask().number
    assert fail_orphans(study) == []
    monkeypatch.setattr(owner_module, "UNOWNED_GRACE", owner_module.UNOWNED_GRACE * 0)
    assert fail_orphans(study) == [number]


def test_the_current_owner_is_this_process() -> None:
    assert Owner.current().pid == os.getpid()
    assert not Owner.current().is_gone()
