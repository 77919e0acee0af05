"""Runs trials in this process, for debugging: a crash or a hang ends the study too."""

from autoplace.bench.llama_cpp.trial import run_llama_cpp_trial
from autoplace.bench.metrics import Outcome
from autoplace.bench.request import TrialRequest
from autoplace.bench.worker import run_trial
from autoplace.tuner.runner import Runner


class InlineRunner(Runner):
    """No Ray, no worker: `run_trial` as it is; llama.cpp's programs are this process's children."""

    def run(self, request: TrialRequest) -> Outcome:
        if request.llama_cpp is not None:
            return run_llama_cpp_trial(request)
        return run_trial(request)

    def close(self) -> None:
        """Each trial has let go of what it took."""
