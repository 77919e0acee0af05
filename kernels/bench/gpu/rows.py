"""Rows of the table: a file of them, which a stage writes and the driver reads. Knows no torch."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

OK, FAILED = "ok", "FAILED"


@dataclass(frozen=True)
class Row:
    what: str
    value: str
    verdict: str
    """`ok`, `FAILED`, or why there is nothing."""


def append_row(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read_rows(path: Path) -> list[Row]:
    """Whole rows of a file; none where there is no file. A torn last line is left out."""
    rows = []
    with suppress(OSError):
        for line in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                rows.append(Row(**json.loads(line)))
    return rows


def table(rows: list[Row]) -> str:
    width = max((len(row.what) for row in rows), default=0)
    return "\n".join(f"{row.what:{width}}  {row.verdict:7}  {row.value}" for row in rows)
