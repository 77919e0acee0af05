"""A process of its own for trials: reused while it lives, killed with all it started when it hangs.

The worker leads a session and dies when its parent does, so that nothing survives a `kill -9`.
Why a worker died is told by its exit code and the kernel's counters. This side needs no torch.
"""

import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from autoplace.bench.environment import worker_environment
from autoplace.bench.footprint import Footprint
from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.bench.out_of_memory_kills import OutOfMemoryKills
from autoplace.bench.quarantine import free_bytes, quarantine_reason
from autoplace.bench.request import TrialRequest
from autoplace.errors import AutoplaceError

START_LIMIT_S = 300.0
"""For the worker's imports and, on first use, the build of the kernels: not the trial's time."""
REFERENCE_LIMIT_S = 3600.0
"""For the reference logits of a model, once: not the trial's time either."""
GRACE_S = 2.0
"""A worker that can end by itself at the limit, with the repeats it has, is let do so."""
_EXIT_S = 5.0
SIZE = struct.Struct("!Q")


class WorkerDiedError(Exception):
    """The worker's process ended; `returncode` as subprocess has it, negative for a signal."""

    def __init__(self, returncode: int, *, for_memory: bool) -> None:
        super().__init__(describe_exit(returncode))
        self.returncode = returncode
        self.for_memory = for_memory
        """Killed, and the kernel counted a kill for memory meanwhile."""


class WorkerTimedOutError(Exception):
    """The worker gave no answer in time; it was killed."""


def describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"the worker ended with exit code {returncode}"
    try:
        return f"the worker was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"the worker was killed by signal {-returncode}"


class TrialProcess:
    """One worker, started when it is needed and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: Mapping[str, str] = {}
        self._free_bytes: Mapping[str, int] = {}
        """Of the real GPUs, before the worker started."""

    @property
    def pid(self) -> int | None:
        """Of the living worker; its process group has the same number."""
        return None if self._process is None else self._process.pid

    def run(self, request: TrialRequest, *, retries: int = 1) -> Outcome:
        """One trial. Always an outcome; a trial whose worker died is tried again in a new one.

        Raise `AutoplaceError` where a GPU did not get its memory back after a worker's end: it
        is quarantined, since every later trial on it would be measured wrong.
        """
        outcome = self._run_once(request)
        if self._process is None:
            missing = quarantine_reason(self._free_bytes, request.machine)
            if missing:
                raise AutoplaceError(f"quarantined after {outcome.status.value}: {missing}")
        if "worker_exit" not in outcome.environment or outcome.status is not Status.CRASHED:
            return outcome
        if retries == 0:
            return outcome
        again = self.run(request, retries=retries - 1)
        retried = {"retried_after": outcome.reason}
        return replace(again, environment={**again.environment, **retried})

    def footprint(self, request: TrialRequest) -> Footprint:
        """What the placement really takes, in a new process, which holds nothing else.

        Raise `WorkerDiedError` or `WorkerTimedOutError`.
        """
        self.close()
        try:
            self._start(request)
            footprint = self._ask("footprint", request, limit_s=REFERENCE_LIMIT_S)
        finally:
            self.close()
        assert isinstance(footprint, Footprint)
        return footprint

    def close(self) -> None:
        """Kill the worker's process group and wait for the worker."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _run_once(self, request: TrialRequest) -> Outcome:
        basis = Basis.of(request.machine)
        limit_s = request.measure.time_limit_s
        try:
            self._start(request)
            failure = self._ask("prepare", request, limit_s=REFERENCE_LIMIT_S)
            outcome = failure or self._ask("run_trial", request, limit_s=limit_s + GRACE_S)
        except WorkerTimedOutError:
            reason = f"no result within {limit_s:g} s; the worker was killed"
            return Outcome(Status.TIMED_OUT, basis, reason)
        except WorkerDiedError as error:
            return _died(error, basis)
        assert isinstance(outcome, Outcome)
        if "not_freed" in outcome.environment:
            self.close()
        return outcome

    def _start(self, request: TrialRequest) -> None:
        environment = worker_environment(request.machine)
        if self._process is not None and environment == self._environment:
            return
        self.close()
        self._environment = environment
        self._free_bytes = free_bytes(request.machine)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autoplace.bench.trial_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._ask("ready", request, limit_s=START_LIMIT_S)

    def _ask(self, what: str, request: TrialRequest, *, limit_s: float) -> Any:
        """Send one call and read its answer. Raise `WorkerDiedError` or `WorkerTimedOutError`."""
        process = self._process
        assert process is not None
        kills = OutOfMemoryKills(process.pid)
        try:
            _send(process, pickle.dumps((what, request)))
            return pickle.loads(_receive(process, time.monotonic() + limit_s))
        except (BrokenPipeError, EOFError) as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_S)
            self.close()
            code = process.returncode
            for_memory = code == -signal.SIGKILL and kills.happened()
            raise WorkerDiedError(code, for_memory=for_memory) from error
        except BaseException:
            self.close()
            raise


def _send(process: subprocess.Popen[bytes], message: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(SIZE.pack(len(message)) + message)
    process.stdin.flush()


def _receive(process: subprocess.Popen[bytes], deadline_s: float) -> bytes:
    size = SIZE.unpack(_read(process, SIZE.size, deadline_s))[0]
    return _read(process, size, deadline_s)


def _read(process: subprocess.Popen[bytes], size: int, deadline_s: float) -> bytes:
    assert process.stdout is not None
    handle, parts = process.stdout.fileno(), bytearray()
    while len(parts) < size:
        ready, _, _ = select.select([handle], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise WorkerTimedOutError
        part = os.read(handle, size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _died(error: WorkerDiedError, basis: Basis) -> Outcome:
    environment = {"worker_exit": error.returncode}
    if error.for_memory:
        reason = "out of memory on cpu: the kernel killed the worker"
        return Outcome.out_of_memory("cpu", reason, basis, environment=environment)
    return Outcome(Status.CRASHED, basis, str(error), environment=environment)
