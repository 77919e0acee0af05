"""A process that runs a command on one damaged file after the other, until one of them breaks it.

    python -m tests.commands.fuzz_child KEY COMMAND key=value … < PATHS

`KEY`, `model` or `rules`, is what a path stands for. The command is run once as it is given; then
the address space is limited to what it took plus the damaged file plus 200 MB. Answers a line a
path: exit code and seconds of the processor.
"""

import contextlib
import importlib
import io
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoplace.__main__ import COMMANDS
from autoplace.config import load_config
from autoplace.errors import AutoplaceError

MORE_BYTES = 200 * 10**6
HANGS_S = 30
"""Of the clock: the signal ends the process."""


def main() -> None:
    key, command, *words = sys.argv[1:]
    config: Any = load_config(command, words)
    assert run(command, config) in (0, 1)  # what is imported and cached is there from here on
    before = address_space()
    for line in sys.stdin:
        path = Path(line.strip())
        limit = before + path.stat().st_size + MORE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        if key == "model":
            damaged = replace(config, model=replace(config.model, path=path))
        else:
            damaged = replace(config, rules=path, paths=(path,))
        began = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, HANGS_S)
        code = run(command, damaged)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(code, time.process_time() - began, flush=True)


def run(command: str, config: Any) -> int:
    """The exit code that `__main__` would give; a message is one line of a readable length."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return int(importlib.import_module(COMMANDS[command]).run(config))
        except AutoplaceError as error:
            code, line = error.exit_code, str(error)
    assert len(line) < 2000, len(line)
    return code


def address_space() -> int:
    """Bytes of this process's address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
