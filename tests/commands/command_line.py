"""The real command line, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def error_lines(self) -> list[str]:
        return self.stderr.splitlines()


def autoplace(
    *words: str,
    cwd: object = None,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Done:
    """Run `python -m autoplace` with these words. `before` runs in the new process first."""
    done = subprocess.run(
        [sys.executable, "-m", "autoplace", *words],
        cwd=str(cwd) if cwd is not None else None,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)
