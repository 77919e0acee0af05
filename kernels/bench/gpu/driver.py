"""Runs stages as processes within a time limit: one that crashes or hangs costs its own rows only.

Knows nothing of torch, so that a GPU in a bad state cannot take it along.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoplace.kernels.bench.gpu.rows import FAILED, Row, read_rows

SECONDS = {
    "write": 240,
    "limits": 30,
    "dequantise": 45,
    "pack": 60,
    "linears": 75,
    "experts": 75,
    "tiny models": 60,
    "decode, experts on the CPU": 90,
    "decode, experts packed": 75,
    "decode, experts bf16": 75,
}
"""Stage: after so long it is ended. `write` runs beside the others until a model is needed."""


@dataclass(frozen=True)
class Running:
    """A stage under way."""

    name: str
    process: subprocess.Popen[str]
    rows: Path
    errors: Path
    end: float
    """On the monotonic clock."""

    def wait(self) -> list[Row]:
        """Its rows, with one more if it did not end by itself and well."""
        try:
            code = self.process.wait(max(0.0, self.end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.stop()
            ended = Row(f"stage {self.name}", "ended: it took too long", FAILED)
            return [*read_rows(self.rows), ended]
        rows = read_rows(self.rows)
        if code != 0 and not any(row.verdict == FAILED for row in rows):
            told = f"exit code {code}: {_last_line(self.errors)}"
            rows.append(Row(f"stage {self.name}", told, FAILED))
        return rows

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start(
    command: Sequence[str], name: str, folder: Path, *, seconds: float, grace_s: float = 10.0
) -> Running:
    """Begin a stage that should take `seconds` at most; it is ended `grace_s` later."""
    stem = name.replace(" ", "-").replace(",", "")
    rows, errors = folder / f"{stem}.jsonl", folder / f"{stem}.err"
    arguments = ["--stage", name, "--rows", str(rows), "--seconds", str(seconds)]
    with errors.open("w") as file:
        process = subprocess.Popen(
            [*command, *arguments], stderr=file, text=True, start_new_session=True
        )
    return Running(name, process, rows, errors, time.monotonic() + seconds + grace_s)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "nothing was said"
