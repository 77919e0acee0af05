"""Workers that die, hang, are disturbed or orphaned: told apart, and nothing is left behind."""

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
from autoplace.bench.out_of_memory_kills import memory_cgroup
from autoplace.bench.request import TrialRequest
from autoplace.bench.trial_process import TrialProcess, describe_exit
from autoplace.units import GIB, MIB
from autoplace.workload import Workload
from tests.bench.trial_requests import TinyModel, emulated_machine

ORPHANING = """
import os, pickle, signal, sys, threading, time
from autoplace.bench.trial_process import TrialProcess
trials = TrialProcess()
request = pickle.load(open(sys.argv[1], "rb"))
threading.Thread(target=trials.run, args=(request,), daemon=True).start()
while trials.pid is None:
    time.sleep(0.05)
print(trials.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def trials() -> Iterator[TrialProcess]:
    process = TrialProcess()
    yield process
    process.close()


def eventually(holds: Callable[[], bool], *, limit_s: float = 30.0) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def interrupt(trials: TrialProcess, request: TrialRequest, number: int, times: int) -> Outcome:
    """Run a trial and send each of its workers, up to `times`, a signal while it computes."""
    pids: set[int] = set()

    def send() -> None:
        while len(pids) < times and not done.is_set():
            pid = trials.pid
            if pid is not None and pid not in pids and _is_computing(pid):
                pids.add(pid)
                os.kill(pid, number)
            time.sleep(0.02)

    done = threading.Event()
    sender = threading.Thread(target=send)
    sender.start()
    outcome = trials.run(request)
    done.set()
    sender.join()
    return outcome


def _is_computing(pid: int) -> bool:
    """Past its imports: the model file is mapped."""
    try:
        return any("tiny.gguf" in mapped.path for mapped in psutil.Process(pid).memory_maps())
    except psutil.Error:
        return False


def test_a_worker_is_reused_and_leads_its_own_session(
    trials: TrialProcess, tiny: TinyModel
) -> None:
    assert trials.run(tiny.request()).status is Status.OK
    pid = trials.pid
    assert trials.run(tiny.request("even split")).status is Status.OK
    assert trials.pid == pid
    assert pid is not None
    assert os.getsid(pid) == pid


def test_a_trial_past_its_limit_is_timed_out_and_killed(
    trials: TrialProcess, tiny: TinyModel
) -> None:
    assert trials.run(tiny.request()).status is Status.OK
    pid = trials.pid
    outcome = trials.run(tiny.endless_request(time_limit_s=1.0))
    assert outcome.status is Status.TIMED_OUT
    assert "within 1 s" in outcome.reason
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert trials.run(tiny.request()).status is Status.OK


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda n: n.name)
def test_a_worker_that_dies_twice_has_crashed_by_that_signal(
    trials: TrialProcess, tiny: TinyModel, number: signal.Signals
) -> None:
    outcome = interrupt(trials, tiny.endless_request(), number, times=2)
    assert outcome.status is Status.CRASHED
    assert number.name in outcome.reason
    assert outcome.environment["worker_exit"] == -number
    assert number.name in str(outcome.environment["retried_after"])


def test_a_trial_whose_worker_died_once_is_tried_again(
    trials: TrialProcess, tiny: TinyModel
) -> None:
    trials.close()
    request = tiny.request()
    slow = replace(request, measure=replace(request.measure, min_repeats=20, max_repeats=20))
    outcome = interrupt(trials, slow, signal.SIGKILL, times=1)
    assert outcome.status is Status.OK, outcome.reason
    assert "SIGKILL" in str(outcome.environment["retried_after"])


def test_a_measurement_among_busy_processes_is_contended(
    trials: TrialProcess, tiny: TinyModel
) -> None:
    request = tiny.request()
    measure = replace(request.measure, max_other_share=0.25, min_repeats=100, max_repeats=100)
    burn = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    burners = [
        # Sessions of their own: the kernel's autogroups share the CPUs out by session.
        subprocess.Popen(burn, stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(3 * (os.cpu_count() or 1))
    ]
    try:
        for burner in burners:
            assert burner.stdout is not None
            burner.stdout.readline()  # It burns from here on.
        outcome = trials.run(replace(request, measure=measure))
    finally:
        for burner in burners:
            burner.kill()
            burner.communicate()
    assert outcome.status is Status.CONTENDED, outcome
    assert outcome.metrics is None
    assert float(outcome.environment["wait_share"]) > 0.5


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 8 MiB. Needs the right to make one, as in most containers' root has."""
    parent = memory_cgroup(os.getpid())
    folder = Path("/nowhere") if parent is None else parent / f"autoplace-test-{os.getpid()}"
    limit = folder / "memory.limit_in_bytes"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no memory cgroup can be made here")
    try:
        if not limit.exists():
            limit = folder / "memory.max"
        limit.write_text(str(8 * MIB))
        yield folder
    except OSError:
        pytest.skip("no memory cgroup can be limited here")
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            (folder.parent / "cgroup.procs").write_text(pid)
        folder.rmdir()


def test_a_worker_that_the_kernel_killed_for_memory_ran_out_of_host_memory(
    trials: TrialProcess, tiny: TinyModel, small_cgroup: Path
) -> None:
    request = tiny.request()
    assert trials.run(request).status is Status.OK
    (small_cgroup / "cgroup.procs").write_text(str(trials.pid))
    # Attention scores of 2000 x 2000 positions and 4 heads: 64 MB.
    big = replace(
        request,
        workload=Workload("big", prompt_tokens=2000, output_tokens=4, context_tokens=2004),
        settings=replace(request.settings, prefill_chunk=2000),
        machine=emulated_machine(gpu_bytes=4 * GIB),
    )
    outcome = trials.run(big)
    assert outcome.status is Status.OUT_OF_MEMORY, outcome
    assert outcome.out_of_memory_device == "cpu"
    assert "the kernel killed the worker" in outcome.reason


def test_a_worker_dies_with_its_parent(tiny: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "request"
    file.write_bytes(pickle.dumps(tiny.endless_request()))
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANING, str(file)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert eventually(lambda: _is_computing(worker))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: not psutil.pid_exists(worker), limit_s=10)


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(-11, "killed by SIGSEGV"), (-200, "killed by signal 200"), (3, "exit code 3")],
)
def test_an_exit_is_described(returncode: int, words: str) -> None:
    assert words in describe_exit(returncode)
