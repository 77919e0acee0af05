"""Runs trials in a Ray actor: the only module that imports Ray.

The actor is small: it holds a `TrialProcess`, whose process loads the model, so that a crash, a
hang or a kill takes that process and not the actor, and its exit code is known.
"""

import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

import psutil

from autoplace.bench.host_lock import alone_on_this_host
from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.bench.request import TrialRequest
from autoplace.bench.trial_process import REFERENCE_LIMIT_S, START_LIMIT_S, TrialProcess
from autoplace.errors import AutoplaceError
from autoplace.tuner.runner import Runner
from autoplace.units import MIB

ACTOR_START_LIMIT_S = 120.0
WATCH_S = 1.0
LOCAL_RAY = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Where Ray does not do clusters it listens on the loopback interface only. Said here, it
    # holds on Linux too; `_node_ip_address` alone is replaced by the host's own address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray leaves CUDA_VISIBLE_DEVICES alone: `TrialProcess` sets it.
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray runs workers at niceness 15: every other process would take the CPU from a measurement.
    "RAY_worker_niceness": "0",
}
"""Read when Ray is imported or starts its processes."""


class TrialActor:
    """What Ray runs. Ends itself, and with it the trial, once the driver is gone."""

    def __init__(self, driver_pid: int | None) -> None:
        self._trials = TrialProcess()
        if driver_pid is not None:
            started = psutil.Process(driver_pid).create_time()
            threading.Thread(target=_watch, args=(driver_pid, started), daemon=True).start()

    def pid(self) -> int:
        return os.getpid()

    def run(self, request: TrialRequest) -> Outcome:
        return self._trials.run(request)

    def run_alone(self, request: TrialRequest) -> Outcome:
        """As `run`, holding the lock of the actor's own host."""
        with alone_on_this_host(_say):
            return self._trials.run(request)

    def close(self) -> None:
        self._trials.close()


def _watch(driver_pid: int, started: float) -> None:
    """The trial's process dies with us: it watches the pipe that we hold."""
    while _lives(driver_pid, started):
        time.sleep(WATCH_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _lives(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


class RayRunner(Runner):
    """One actor, reused between trials; a new one after the actor itself has died.

    With an `address` the trials run on that cluster, under its own settings; without one on a Ray
    of our own, on this machine and its loopback interface, with a token nobody else has.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        object_store_mib: int = 100,
        say: Callable[[str], None] = _say,
    ) -> None:
        self._is_local = address is None
        self._say = say
        self._actor: Any = None
        self._temp_dir: str | None = None
        say("starting Ray (takes about 10 s)" if address is None else f"joining Ray at {address}")
        self._ray = _import_ray(local=self._is_local)
        try:
            self._init(address, object_store_mib)
        except BaseException:
            self.close()
            raise

    def run(self, request: TrialRequest) -> Outcome:
        """Where trials run on this machine, hold its lock; the actor does so on another."""
        if not self._is_local:
            return self._run(request, "run_alone", retries=1)
        with alone_on_this_host(self._say):
            return self._run(request, "run", retries=1)

    def close(self) -> None:
        """Kill the trial, the actor and our Ray. Does nothing the second time."""
        self._drop_actor()
        self._ray.shutdown()
        if self._temp_dir is not None:
            shutil.rmtree(self._temp_dir, ignore_errors=True)

    @property
    def actor_pid(self) -> int:
        """Of the actor, which is started if there is none."""
        return int(self._ray.get(self._started_actor().pid.remote()))

    def _init(self, address: str | None, object_store_mib: int) -> None:
        options: dict[str, Any] = {"address": address, "log_to_driver": False}
        if address is None:
            # A short path: the sockets' names in it may have 107 characters.
            self._temp_dir = tempfile.mkdtemp(prefix="autoplace-ray-", dir="/tmp")
            options |= {
                "address": "local",
                "num_cpus": 1,
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": object_store_mib * MIB,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": self._temp_dir,
            }
        try:
            with _own_sigterm_handler():
                self._ray.init(logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = "on this machine" if address is None else f"at {address}"
            raise AutoplaceError(
                f"Ray {where} cannot be used: {' '.join(str(error).split())[:300]}; "
                "runner=inline needs no Ray"
            ) from error

    def _started_actor(self) -> Any:
        if self._actor is None:
            options = {"num_cpus": 1, "max_restarts": 0}
            actor = self._ray.remote(**options)(TrialActor)
            self._actor = actor.remote(os.getpid() if self._is_local else None)
            self._ray.get(self._actor.pid.remote(), timeout=ACTOR_START_LIMIT_S)
        return self._actor

    def _drop_actor(self) -> None:
        """Forget the actor and make sure that it, and its trial, are dead."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def _run(self, request: TrialRequest, method: str, *, retries: int) -> Outcome:
        basis = Basis.of(request.machine)
        limit_s = START_LIMIT_S + REFERENCE_LIMIT_S + 2 * request.measure.time_limit_s
        errors = self._ray.exceptions
        try:
            actor = self._started_actor()
            outcome = self._ray.get(getattr(actor, method).remote(request), timeout=limit_s)
        except errors.GetTimeoutError:
            self._drop_actor()
            return Outcome(Status.TIMED_OUT, basis, f"Ray's worker is silent for {limit_s:g} s")
        except errors.RayError as error:
            self._drop_actor()
            if isinstance(error, errors.RayTaskError) and isinstance(error.cause, AutoplaceError):
                raise error.cause from error
            if isinstance(error, errors.OutOfMemoryError):
                reason = "out of memory on cpu: Ray's memory monitor killed the worker"
                return Outcome.out_of_memory("cpu", reason, basis)
            if retries and isinstance(error, errors.RayActorError):
                again = self._run(request, method, retries=retries - 1)
                retried = {"retried_after": "Ray's worker died"}
                return replace(again, environment={**again.environment, **retried})
            return Outcome(Status.CRASHED, basis, f"Ray's worker died: {type(error).__name__}")
        assert isinstance(outcome, Outcome)
        return outcome


def _import_ray(*, local: bool) -> Any:
    """Ray, told by its environment variables what it reads once."""
    if local:
        os.environ.update(LOCAL_RAY)
        os.environ["RAY_AUTH_TOKEN"] = _token()
    import ray
    import ray._private.worker
    import ray.exceptions

    # Ray prints what happens to workers on standard output, which is the answer's.
    ray._private.worker.print_to_stdstream = _drop
    return ray


@cache
def _token() -> str:
    """Made for each of our processes. Ray reads it once: another one for a second Ray of the same
    process would be refused."""
    return secrets.token_hex(32)


def _drop(*_arguments: object, **_keywords: object) -> None:
    """We say ourselves why a trial ended."""


@contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Ray's start replaces the handler of SIGTERM, in C++ and in Python: put ours back."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
