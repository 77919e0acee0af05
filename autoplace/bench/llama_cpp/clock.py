"""What programs used while their timed runs went on, and when those began."""

import time
from collections.abc import Callable, Iterable

from autoplace.bench.usage import NOTHING, Counters, Usage

Pids = Callable[[], Iterable[int]]


class TimedUsage:
    """Adds up the counters of programs over the spans that are timed."""

    def __init__(self, pids: Pids) -> None:
        """`pids`: of the programs that do the work, RPC servers included."""
        self._pids = pids
        self._begun: Counters | None = None
        self._usage = NOTHING
        self.first_s: float | None = None
        """When the first span began, on `time.monotonic`'s clock."""

    def begin(self) -> None:
        """Does nothing where a span has begun already."""
        if self._begun is None:
            self._begun = Counters.of(self._pids())
            self.first_s = self.first_s or time.monotonic()

    def end(self) -> None:
        """To be called while the programs still live."""
        if self._begun is not None:
            self._usage += self._begun.until(Counters.of(self._pids()))
            self._begun = None

    def so_far(self) -> Usage:
        if self._begun is None:
            return self._usage
        return self._usage + self._begun.until(Counters.of(self._pids()))
