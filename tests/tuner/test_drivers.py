"""Drivers that are killed, and drivers that share a storage, as processes of their own."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from autoplace.tuner.storage import open_storage
from tests.interrupts import listen_to_ctrl_c

Driver: TypeAlias = "subprocess.Popen[bytes]"
Start: TypeAlias = Callable[..., Driver]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "studies.db"


@pytest.fixture
def start(database: Path) -> Iterator[Start]:
    """Starts drivers of the database; what still runs when a test ends is killed."""
    drivers: list[Driver] = []

    def begin(*, n_trials: int, delay_s: float) -> Driver:
        arguments = [str(database), str(n_trials), str(delay_s)]
        drivers.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.tuner.driver", *arguments],
                stderr=subprocess.PIPE,
                preexec_fn=listen_to_ctrl_c,
            )
        )
        return drivers[-1]

    yield begin
    for driver in drivers:
        if driver.poll() is None:
            driver.kill()
            driver.communicate()


def finish(process: Driver) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def trials_of(database: Path) -> list[FrozenTrial]:
    if not database.exists():
        return []
    storage = open_storage(database)
    names = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=names[0], storage=storage).trials if names else []
    storage.remove_session()
    storage.engine.dispose()
    return trials


def wait_for_measured(database: Path, count: int) -> None:
    """Until `count` trials are complete and another one is running."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        states = [trial.state for trial in trials_of(database)]
        if states.count(TrialState.COMPLETE) >= count and TrialState.RUNNING in states:
            return
        time.sleep(0.1)
    raise AssertionError(f"no {count} trials after a minute")


def measured_keys(database: Path) -> list[str]:
    return [
        trial.user_attrs["key"]
        for trial in trials_of(database)
        if trial.state is TrialState.COMPLETE
    ]


def test_a_killed_driver_loses_the_running_trial_only_and_a_second_call_goes_on(
    database: Path, start: Start
) -> None:
    first = start(n_trials=8, delay_s=1.0)
    wait_for_measured(database, 2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = measured_keys(database)
    finish(start(n_trials=8, delay_s=0.0))
    after = measured_keys(database)
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 8
    lost = [t for t in trials_of(database) if t.user_attrs.get("status") == "lost"]
    assert len(lost) <= 1
    assert all(trial.state.is_finished() for trial in lost)
    assert not [t for t in trials_of(database) if t.state is TrialState.RUNNING]


def test_ctrl_c_writes_what_was_found(database: Path, start: Start) -> None:
    first = start(n_trials=8, delay_s=1.0)
    wait_for_measured(database, 2)
    first.send_signal(signal.SIGINT)
    finish(first)
    (best,) = (database.parent / "studies").rglob("best.rules.yaml")
    assert "- match:" in best.read_text()
    report = best.with_name("report.md").read_text()
    assert "it was interrupted" in report
    (lost,) = [t for t in trials_of(database) if t.state is TrialState.FAIL]
    assert lost.user_attrs["status"] == "interrupted"


def test_two_drivers_share_a_study_and_no_placement_completes_twice(
    database: Path, start: Start
) -> None:
    drivers = [start(n_trials=10, delay_s=0.3) for _ in range(2)]
    for driver in drivers:
        finish(driver)
    keys = measured_keys(database)
    assert len(keys) == len(set(keys)) >= 10
    owners = {
        trial.user_attrs["owner"]["pid"]
        for trial in trials_of(database)
        if trial.state is TrialState.COMPLETE
    }
    assert len(owners) == 2
