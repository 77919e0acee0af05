"""Runs trials in a process of their own on this machine, without Ray."""

import sys
from collections.abc import Callable

from autoplace.bench.host_lock import alone_on_this_host
from autoplace.bench.metrics import Outcome
from autoplace.bench.request import TrialRequest
from autoplace.bench.trial_process import TrialProcess
from autoplace.tuner.runner import Runner


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


class ProcessRunner(Runner):
    """A crash, a hang or a kill ends the trial only, as with Ray, and starting takes 3 s."""

    def __init__(self, *, say: Callable[[str], None] = _say) -> None:
        self._say = say
        self._trials = TrialProcess()

    @property
    def worker_pid(self) -> int | None:
        return self._trials.pid

    def run(self, request: TrialRequest) -> Outcome:
        with alone_on_this_host(self._say):
            return self._trials.run(request)

    def close(self) -> None:
        self._trials.close()
