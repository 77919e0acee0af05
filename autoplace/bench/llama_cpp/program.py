"""A program that is being run: its lines as they come, its counters, how it ended.

It stays in the process group of the trial, so that whatever ends the trial ends it too.
"""

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO

from autoplace.bench.out_of_memory_kills import OutOfMemoryKills

MAX_LOG_LINES = 50_000
_EXIT_S = 5.0
QUIET = {"GGML_NO_BACKTRACE": "1", "LLAMA_LOG_COLORS": "off", "NO_COLOR": "1"}
"""A program that aborts otherwise starts a debugger on itself."""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    program: str
    returncode: int
    """Negative for a signal."""
    for_memory: bool
    """Killed, and the kernel counted a kill for memory meanwhile."""
    timed_out: bool
    log: tuple[str, ...]
    answer: tuple[str, ...]

    @property
    def how(self) -> str:
        """`llama-bench was killed by SIGKILL`."""
        if self.returncode >= 0:
            return f"{self.program} ended with exit code {self.returncode}"
        return f"{self.program} was killed by {signal.Signals(-self.returncode).name}"


class Program:
    """One running program. Leaving the block ends it."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        name: str | None = None,
        environment: Mapping[str, str] | None = None,
        on_log: Callable[[str], None] = lambda line: None,
        on_answer: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`on_log` is told each line of standard error, `on_answer` of standard output, at once."""
        self.name = name or PurePath(words[0]).name
        self.log: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self.answer: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self._timed_out = False
        self._process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **QUIET, **(environment or {})},
        )
        self._kills = OutOfMemoryKills(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            _reader(self._process.stderr, self.log, on_log),
            _reader(self._process.stdout, self.answer, on_answer),
        ]

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def wait(self, deadline_s: float) -> Ended:
        """Until it ends, or is killed at the deadline (of `time.monotonic`'s clock)."""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._timed_out = True
        return self.end()

    def end(self) -> Ended:
        """Kill it if it still runs, and read what it said to the end."""
        if self.lives:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(_EXIT_S)
        code = self._process.returncode
        return Ended(
            self.name,
            code,
            for_memory=code == -signal.SIGKILL and not self._timed_out and self._kills.happened(),
            timed_out=self._timed_out,
            log=tuple(self.log),
            answer=tuple(self.answer),
        )


def _reader(
    stream: IO[bytes], lines: deque[str], on_line: Callable[[str], None]
) -> threading.Thread:
    def read() -> None:
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip("\n")
                lines.append(line)
                on_line(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread
