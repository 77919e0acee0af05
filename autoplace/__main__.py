"""The command line: a command's name → its module; an AutoplaceError as one line."""

import importlib
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from types import FrameType

from autoplace import __version__
from autoplace.errors import AutoplaceError, did_you_mean

COMMANDS = {
    "inspect": "autoplace.commands.inspect",
    "synth": "autoplace.commands.synth",
    "probe": "autoplace.commands.probe",
    "plan": "autoplace.commands.plan",
    "check": "autoplace.commands.check",
    "export": "autoplace.commands.export",
    "bench": "autoplace.commands.bench",
    "tune": "autoplace.commands.tune",
    "report": "autoplace.commands.report",
}
"""Each module has `run(config) -> int`, with the config of its command and an exit code."""

OUR_FAULT = 3
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code: 0, 1, 2, 3 or 130; raises nothing."""
    _log_to_stderr()
    _end_on_sigterm_as_on_ctrl_c()
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except AutoplaceError as problem:
        print(f"autoplace: {' '.join(str(problem).split())}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("autoplace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as fault:  # what nobody foresaw is our fault, said in one line, kept in full
        if os.environ.get("AUTOPLACE_DEBUG"):
            traceback.print_exc()
        print(f"autoplace: {_fault_line(fault)}", file=sys.stderr)
        return OUR_FAULT


def _end_on_sigterm_as_on_ctrl_c() -> None:
    """A scheduler's SIGTERM ends a study as cleanly as a person's Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        from autoplace.config.help import program_help

        print(program_help(COMMANDS), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"autoplace {__version__}")
        return 0
    command, *words = arguments
    if command not in COMMANDS:
        raise AutoplaceError(f"no command {command!r}{did_you_mean(command, COMMANDS)}")
    if {"--help", "-h"} & set(words):
        from autoplace.config.help import command_help

        print(command_help(command))
        return 0
    from autoplace.config import load_config

    config = load_config(command, words)
    return int(importlib.import_module(COMMANDS[command]).run(config))


def _fault_line(fault: Exception) -> str:
    """What happened, and where the traceback is."""
    summary = f"a fault of ours: {type(fault).__name__}: {' '.join(str(fault).split())}"
    if os.environ.get("AUTOPLACE_DEBUG"):
        return summary
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="autoplace-fault-", suffix=".txt", delete=False
        ) as file:
            traceback.print_exception(fault, file=file)
        return f"{summary} (traceback in {file.name})"
    except OSError:
        return f"{summary} (AUTOPLACE_DEBUG=1 shows the traceback)"


def _log_to_stderr() -> None:
    """Log to what standard error is now: a caller may have replaced it since the last call."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("autoplace")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
