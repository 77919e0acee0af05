"""Where a command's answer goes: one JSON document or tables on stdout; all else on stderr."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

SCHEMA_VERSION = 1
WIDTH_OF_A_FILE = 160
"""Columns where standard output is no terminal."""


def print_json(command: str, document: Mapping[str, Any]) -> None:
    """The one document of `output=json`."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, "command": command, **document}, indent=2))


def answer_console() -> Console:
    """For the answer: standard output."""
    width = None if sys.stdout.isatty() else WIDTH_OF_A_FILE
    return Console(file=sys.stdout, width=width, highlight=False, markup=False)


def progress_console() -> Console:
    """For logs and progress: standard error."""
    return Console(file=sys.stderr, highlight=False, markup=False)


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    built = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        built.add_column(column, justify="right" if i else "left")
    return built
