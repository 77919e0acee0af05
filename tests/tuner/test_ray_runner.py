"""The runners that survive their trials: one suite, by Ray and by a process of our own."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autoplace.bench.metrics import Outcome, Status
from autoplace.bench.request import TrialRequest
from autoplace.tuner.process_runner import ProcessRunner
from autoplace.tuner.ray_runner import RayRunner
from autoplace.tuner.runner import Runner
from tests.bench.trial_requests import TinyModel, own_cache

DRIVER = """
import pickle, sys
from autoplace.tuner.ray_runner import RayRunner
runner = RayRunner()
print(runner.actor_pid, flush=True)
runner.run(pickle.load(open(sys.argv[1], "rb")))
"""


MONITORED = """
import os, pickle, sys
os.environ["RAY_memory_usage_threshold"] = "0.01"
os.environ["RAY_memory_monitor_refresh_ms"] = "100"
from autoplace.tuner.ray_runner import RayRunner
runner = RayRunner()
outcome = runner.run(pickle.load(open(sys.argv[1], "rb")))
runner.close()
print(outcome.status.value, outcome.out_of_memory_device, outcome.reason)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.written_to(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def ray_runner(tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Iterator[RayRunner]:
    with own_cache(tmp_path_factory.mktemp("cache")):
        runner = RayRunner(say=said.append)
        yield runner
        runner.close()


@pytest.fixture(scope="module")
def process_runner() -> Iterator[ProcessRunner]:
    runner = ProcessRunner()
    yield runner
    runner.close()


@pytest.fixture(params=["ray", "process"])
def runner(request: pytest.FixtureRequest) -> Runner:
    found = request.getfixturevalue(f"{request.param}_runner")
    assert isinstance(found, Runner)
    return found


def eventually(holds: Callable[[], bool], *, limit_s: float = 60.0) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def trial_pids(parent: int) -> list[int]:
    """Workers below a process that have a model mapped."""
    try:
        children = psutil.Process(parent).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in children if _has_mapped_a_model(child)]


def _has_mapped_a_model(process: psutil.Process) -> bool:
    try:
        return any("tiny.gguf" in mapped.path for mapped in process.memory_maps())
    except psutil.Error:
        return False


def run_and_kill(
    runner: Runner, request: TrialRequest, victims: Callable[[], list[int]]
) -> Outcome:
    """Run a trial and kill the first victim that appears."""

    def kill() -> None:
        if eventually(lambda: bool(victims())):
            os.kill(victims()[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = runner.run(request)
    killer.join()
    return outcome


def test_starting_is_announced(ray_runner: RayRunner, said: list[str]) -> None:
    assert said[0] == "starting Ray (takes about 10 s)"


def test_a_good_trial_has_numbers_and_the_threads_it_asked_for(
    runner: Runner, tiny: TinyModel
) -> None:
    outcome = runner.run(tiny.request())
    assert outcome.status is Status.OK, outcome.reason
    assert outcome.metrics is not None
    assert outcome.environment["torch_threads"] == 1
    assert outcome.environment["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert outcome.environment["visible_gpus"] == ""


def test_out_of_memory_is_the_same_as_predicted(runner: Runner, tiny: TinyModel) -> None:
    request = tiny.request()
    peak = tiny.plan(request).by_device["cuda:0"].peak
    devices = tuple(
        replace(device, memory_bytes=peak - 1) if device.name == "cuda:0" else device
        for device in request.machine.devices
    )
    outcome = runner.run(replace(request, machine=replace(request.machine, devices=devices)))
    assert outcome.status is Status.OUT_OF_MEMORY
    assert (outcome.out_of_memory_device, outcome.out_of_memory_bytes) == ("cuda:0", 1)


def test_a_hanging_trial_is_timed_out_and_the_next_one_runs(
    runner: Runner, tiny: TinyModel
) -> None:
    assert runner.run(tiny.endless_request(time_limit_s=1.0)).status is Status.TIMED_OUT
    assert runner.run(tiny.request()).status is Status.OK


def test_a_trial_whose_worker_was_killed_is_tried_again(runner: Runner, tiny: TinyModel) -> None:
    request = tiny.endless_request(time_limit_s=1.0)
    outcome = run_and_kill(runner, request, lambda: trial_pids(os.getpid()))
    assert outcome.status is Status.TIMED_OUT
    assert "SIGKILL" in str(outcome.environment.get("retried_after"))


def test_an_actor_that_was_killed_takes_its_trial_along_and_is_replaced(
    ray_runner: RayRunner, tiny: TinyModel
) -> None:
    actor = ray_runner.actor_pid
    orphan: list[int] = []

    def victims() -> list[int]:
        orphan[:] = trial_pids(actor) or orphan
        return [actor] if orphan else []

    outcome = run_and_kill(ray_runner, tiny.endless_request(time_limit_s=2.0), victims)
    assert outcome.environment.get("retried_after") == "Ray's worker died", outcome
    assert ray_runner.actor_pid != actor
    assert eventually(lambda: not psutil.pid_exists(orphan[0]))


def test_ray_listens_on_the_loopback_interface_only(ray_runner: RayRunner) -> None:
    pids = {process.pid for process in psutil.Process().children(recursive=True)}
    addresses = {
        connection.laddr.ip
        for connection in psutil.net_connections("tcp")
        if connection.laddr
        and connection.status == psutil.CONN_LISTEN
        and connection.pid in {*pids, os.getpid()}
    }
    assert addresses
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_nothing_survives_a_killed_driver(tiny: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "request"
    file.write_bytes(pickle.dumps(tiny.endless_request()))
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(file)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, env={**os.environ, "AUTOPLACE_LOCK": str(tmp_path / "lock")},
    )  # fmt: skip
    assert driver.stdout is not None
    actor = int(driver.stdout.readline())
    assert eventually(lambda: bool(trial_pids(actor)))
    doomed = [actor, *trial_pids(actor)]
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in doomed), limit_s=15)


def test_a_worker_that_rays_monitor_killed_ran_out_of_host_memory(
    tiny: TinyModel, tmp_path: Path
) -> None:
    file = tmp_path / "request"
    file.write_bytes(pickle.dumps(tiny.endless_request(time_limit_s=30)))
    environment = {**os.environ, "AUTOPLACE_LOCK": str(tmp_path / "lock")}
    done = subprocess.run(
        [sys.executable, "-c", MONITORED, str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("out_of_memory cpu ")
    assert "Ray's memory monitor" in done.stdout


def test_closing_leaves_no_process(ray_runner: RayRunner) -> None:
    """The runner is not used again."""
    actor = psutil.Process(ray_runner.actor_pid)
    below = [actor, *actor.children(recursive=True)]
    helpers = [
        process
        for process in psutil.Process().children(recursive=True)
        if any("/ray/" in word or word.startswith("ray::") for word in process.cmdline())
    ]
    assert len(helpers) > len(below)
    ray_runner.close()
    _, alive = psutil.wait_procs([*helpers, *below], timeout=30)
    assert not alive


def test_a_ray_may_follow_another_in_one_process(ray_runner: RayRunner) -> None:
    """As for two engines in one call. Last in this file."""
    ray_runner.close()
    second = RayRunner(say=lambda message: None)
    try:
        assert psutil.pid_exists(second.actor_pid)
    finally:
        second.close()
