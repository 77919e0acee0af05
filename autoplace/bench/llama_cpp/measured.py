"""What measuring llama.cpp gives, whichever of its programs did it, and how it can fail."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.bench.llama_cpp.program import Ended
from autoplace.bench.measurement import Measurement
from autoplace.bench.metrics import DeviceBytes


@dataclass(frozen=True)
class Measured:
    """Repeats of the workload, and what the log said of memory."""

    measurement: Measurement
    bytes_by_device: Mapping[str, DeviceBytes]
    load_s: float
    build: str
    """Of the program, as it says itself."""
    log: tuple[str, ...]


class ProgramFailedError(Exception):
    """A program ended, or was ended, without an answer."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.how)
        self.ended = ended
