"""Records work on GPUs as pieces of graphs, and what the host does between them, to play it again.

Not run on a GPU yet: none was at hand. Tests record by another `Capture`, on host memory.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from autoplace.models.place import Place, put

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


class Capture(Protocol):
    """One piece: what is queued on a device between `begin` and `end` is kept, not done."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def replay(self) -> None:
        """Do what was kept, on the same memory."""


class CudaCaptures:
    """Makes the CUDA graphs of one model: those of a device share a pool of memory.

    They may, since they are replayed in the order in which they were captured. The pool is the
    model's own: torch refuses to capture into one whose graphs are all gone.
    """

    def __init__(self) -> None:
        self._pools: dict[torch.device, _POOL_HANDLE] = {}

    def __call__(self, place: Place) -> Capture:
        device = place.torch_device
        if device not in self._pools:
            self._pools[device] = torch.cuda.graph_pool_handle()
        return CudaCapture(device, self._pools[device])


class CudaCapture:
    """A CUDA graph, captured in the relaxed mode: allocating pinned memory meanwhile is allowed."""

    def __init__(self, device: torch.device, pool: "_POOL_HANDLE") -> None:
        self._device = device
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()

    def begin(self) -> None:
        torch.cuda.set_device(self._device)
        self._graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")

    def end(self) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()


class Recorder:
    """Pieces and steps of the host in their order; each is done as soon as it is recorded."""

    def __init__(self, capture: Callable[[Place], Capture]) -> None:
        self._capture = capture
        self._steps: list[Callable[[], None]] = []
        self._open: tuple[Capture, Place] | None = None

    def begin(self, place: Place) -> None:
        """Begin a piece on a device."""
        assert self._open is None
        piece = self._capture(place)
        piece.begin()
        self._open = piece, place

    def end(self) -> None:
        """End the piece and do it."""
        assert self._open is not None
        piece, _ = self._open
        self._open = None
        piece.end()
        self._do(piece.replay)

    def cut(self, step: Callable[[], None]) -> None:
        """End the piece, do the step now and at every replay, begin another piece."""
        assert self._open is not None
        _, place = self._open
        self.end()
        self._do(step)
        self.begin(place)

    def cross(self, x: Tensor, place: Place) -> Tensor:
        """End the piece, copy x to another GPU, go on there."""
        self.end()
        there = put(torch.empty(x.shape, dtype=x.dtype, device=place.torch_device), place)
        self._do(lambda: _copy(there, x))
        self.begin(place)
        return there

    def replay(self) -> None:
        for step in self._steps:
            step()

    def abandon(self) -> None:
        """End an open piece without doing it: something went wrong while it was recorded."""
        if self._open is not None:
            piece, _ = self._open
            self._open = None
            with suppress(RuntimeError):  # of a capture that is invalid already
                piece.end()

    def _do(self, step: Callable[[], None]) -> None:
        step()
        self._steps.append(step)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _copy(target: Tensor, x: Tensor) -> None:
    target.copy_(x, non_blocking=True)


class Streams:
    """A stream of our own on every GPU: graphs cannot be captured on the default one."""

    def __init__(self, places: list[Place]) -> None:
        devices = sorted({place.torch_device for place in places}, key=str)
        self._streams = [_stream(device) for device in devices if device.type == "cuda"]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """They follow what was queued before, and what is queued after follows them."""
        defaults = [torch.cuda.current_stream(stream.device) for stream in self._streams]
        with ExitStack() as stack:
            for stream, default in zip(self._streams, defaults, strict=True):
                stream.wait_stream(default)
                stack.enter_context(torch.cuda.stream(stream))
            yield
        for stream, default in zip(self._streams, defaults, strict=True):
            default.wait_stream(stream)
