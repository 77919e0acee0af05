"""A driver in a process of its own, for tests that kill it or run two: `python -m … DB N DELAY`."""

import sys
import time
from pathlib import Path

from autoplace.bench.metrics import Outcome
from autoplace.bench.request import TrialRequest
from autoplace.tuner.runner import Runner
from autoplace.tuner.sampler import SamplerSettings
from autoplace.tuner.search import SearchSettings
from autoplace.tuner.session import Session, tune
from tests.tuner.problems import Scripted, small_problem


def main(database: Path, n_trials: int, delay_s: float) -> None:
    """Tune the small problem against the cost model, a trial taking `delay_s`."""
    problem = small_problem(5, 4)

    def slowly(run: int, request: TrialRequest, outcome: Outcome) -> Outcome:
        time.sleep(delay_s)
        return outcome

    def runner() -> Runner:
        return Scripted(problem.spec, slowly)

    settings = SearchSettings(n_trials=n_trials, sampler=SamplerSettings(n_startup_trials=2))
    tune(problem, Session(database, database.parent / "studies", settings), runner)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
