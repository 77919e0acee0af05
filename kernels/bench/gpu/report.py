"""A stage writes down what it checked, what came of it, and whether that is good."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from autoplace.errors import DoesNotFitError
from autoplace.kernels.bench.gpu.rows import FAILED, OK, Row, append_row


@dataclass
class Report:
    """Rows of one process, written to a file as they come: what a crash leaves can be read."""

    path: Path
    interpret: bool
    seconds: float
    """For the stage; cases that would begin later are left out."""
    limits: "Limits | None" = None
    start: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.interpret else "cuda:0")

    def add(self, what: str, value: str, good: bool) -> None:
        self._write(Row(what, value, OK if good else FAILED))

    def case(self, what: str, work: Callable[[], None]) -> None:
        """Do one case if there is time; its exception is a failed row, and the next one follows.

        After an error of CUDA itself nothing works any more in this process: it is raised on.
        """
        if time.monotonic() - self.start > self.seconds:
            self._write(Row(what, "", f"left out: {self.seconds:.0f} s were over"))
            return
        try:
            work()
        except DoesNotFitError as error:
            self._write(Row(what, str(error), "left out: does not fit"))
        except Exception as error:  # whatever it is, the rest of the table is worth having
            self.add(what, one_line(error), good=False)
            if "CUDA error" in str(error):
                raise

    def _write(self, row: Row) -> None:
        append_row(self.path, row)
        print(f"{row.verdict:7} {row.what}: {row.value}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Limits:
    """What this GPU reached in this run: reading memory, and a large bfloat16 product."""

    bytes_per_s: float
    flops: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "Limits | None":
        """None where they were not measured."""
        with suppress(OSError):
            return cls(**json.loads(path.read_text()))
        return None


def one_line(error: BaseException) -> str:
    """The kind and the first line of an exception."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]
