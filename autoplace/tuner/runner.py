"""Runner: what turns a trial request into an outcome."""

from abc import ABC, abstractmethod

from autoplace.bench.metrics import Outcome
from autoplace.bench.request import TrialRequest


class Runner(ABC):
    """Runs trials one at a time. A failing trial is an outcome, never an exception."""

    @abstractmethod
    def run(self, request: TrialRequest) -> Outcome:
        """Build, measure and tear down one placement."""

    @abstractmethod
    def close(self) -> None:
        """Let go of workers and devices."""
