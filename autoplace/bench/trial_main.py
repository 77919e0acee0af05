"""The worker's side of `TrialProcess`: answers calls from its standard input until that ends."""

import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from autoplace.bench.environment import check_worker_environment
from autoplace.bench.request import TrialRequest
from autoplace.bench.trial_process import SIZE


def main() -> None:
    """Keep standard output for answers: what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_die_with_the_parent, args=(sys.stdin.fileno(),), daemon=True).start()
    _serve(sys.stdin.buffer, answers)


def _die_with_the_parent(handle: int) -> None:
    """The other end of our input is the parent's alone: when it closes, the parent is gone."""
    watch = select.poll()
    watch.register(handle, 0)
    watch.poll()
    os.killpg(0, signal.SIGKILL)


def _serve(calls: BinaryIO, answers: BinaryIO) -> None:
    while True:
        what, request = _next(calls)
        answer = pickle.dumps(CALLS[what](request))
        answers.write(SIZE.pack(len(answer)) + answer)
        answers.flush()


def _next(calls: BinaryIO) -> tuple[str, TrialRequest]:
    head = calls.read(SIZE.size)
    if len(head) < SIZE.size:
        raise SystemExit(0)
    what, request = pickle.loads(calls.read(SIZE.unpack(head)[0]))
    return what, request


def _ready(request: TrialRequest) -> None:
    """Import what trials need, before the clock of the first one runs."""
    check_worker_environment(request.machine)
    if request.llama_cpp is not None:
        import autoplace.bench.llama_cpp.trial
    else:
        import autoplace.bench.worker  # noqa: F401


def _prepare(request: TrialRequest) -> Any:
    if request.llama_cpp is not None:
        return None
    from autoplace.bench.worker import prepare

    return prepare(request)


def _run_trial(request: TrialRequest) -> Any:
    if request.llama_cpp is not None:
        from autoplace.bench.llama_cpp.trial import run_llama_cpp_trial

        return run_llama_cpp_trial(request)
    from autoplace.bench.worker import run_trial

    return run_trial(request)


def _footprint(request: TrialRequest) -> Any:
    from autoplace.bench.footprint_trial import measure_footprint

    return measure_footprint(request)


CALLS: Mapping[str, Callable[[TrialRequest], Any]] = {
    "ready": _ready,
    "prepare": _prepare,
    "run_trial": _run_trial,
    "footprint": _footprint,
}

if __name__ == "__main__":
    main()
