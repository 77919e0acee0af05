"""Hands work from a GPU to the host and back through pinned memory, while the GPU goes on.

`begin` queues the copies to the host and returns; until its result is called, what the caller
queues runs on the GPU beside the host's work. While a decode step is being recorded
(`engine/recorder.py`), the copies become part of graphs and the host's work a step between them.
The pinned copies have run by tests only on ordinary host memory: no GPU was at hand.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from autoplace.models.place import HOST, Place, put

Work = Callable[..., Tensor]
"""Tensors in host memory → a tensor [T, …] in host memory."""


class Recording(Protocol):
    """Where a step of the host ends one piece of a graph and begins the next."""

    def cut(self, step: Callable[[], None]) -> None:
        """End the piece, do the step now and at every replay, begin another piece."""


_recording: Recording | None = None


@contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """Within it every handover is part of the recording."""
    global _recording
    assert _recording is None
    _recording = recording
    try:
        yield
    finally:
        _recording = None


def hands_over(place: Place, home: Place) -> bool:
    """True where an operator on `place` works for a GPU `home` through pinned memory."""
    between = not place.is_gpu and home.is_gpu
    return between and (home.torch_device.type == "cuda" or _recording is not None)


def begin(work: Work, inputs: Sequence[Tensor], home: Place) -> Callable[[], Tensor]:
    """Send inputs from `home`; the result does the work on the host and brings its output back."""
    handover = Handover(work, home)
    handover.send(inputs)
    if _recording is None:
        handover.mark()
        return handover.finish
    recording = _recording
    recording.cut(handover.mark)

    def finish() -> Tensor:
        recording.cut(handover.compute)
        return handover.receive()

    return finish


class Handover:
    """One call's copies in host memory, and its phases in their order.

    The pinned memory is torch's caching allocator's: it hands a block out again only when the
    copies that were queued with it are done. What is recorded keeps its blocks.
    """

    def __init__(self, work: Work, home: Place) -> None:
        self._work = work
        self._home = home
        self._on_gpu = home.torch_device.type == "cuda"
        self._sent = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._inputs: list[Tensor] = []
        self._output: Tensor | None = None

    def send(self, inputs: Sequence[Tensor]) -> None:
        """Queue the copies to the host."""
        for x in inputs:
            there = put(self._host_memory(x), HOST)
            self._inputs.append(there.copy_(x, non_blocking=True))

    def mark(self) -> None:
        """What is queued by now must be done before the host may work."""
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._home.torch_device))

    def compute(self) -> None:
        """Wait for the copies, and work."""
        if self._sent is not None:
            self._sent.synchronize()
        result = self._work(*self._inputs)
        if self._output is None:
            self._output = self._host_memory(result)
        self._output.copy_(result)

    def receive(self) -> Tensor:
        """Queue the copy of the output to the GPU."""
        assert self._output is not None
        output, device = self._output, self._home.torch_device
        there = torch.empty(output.shape, dtype=output.dtype, device=device)
        return put(there.copy_(output, non_blocking=True), self._home)

    def finish(self) -> Tensor:
        self.compute()
        return self.receive()

    def _host_memory(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self._on_gpu)
