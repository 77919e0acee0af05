"""Decodes one token by CUDA graphs, in pieces around whatever the host computes.

A graph holds no number that changes: the position is a tensor on every GPU, and attention reads
the first `bucket` rows of the cache under a mask, the smallest power of two (at least 256) that
holds the position. All buckets are recorded at the first token, so that none is while decoding is
timed; the largest first, so that the others find room in what it took. Pieces end where
`device_handover` hands work to the host: a layer with KExpertsCPU is "attention, router, copy to
pinned memory", then "shared expert" beside the host's experts, then "copy back, add, …".

Not run on a GPU yet: none was at hand. Tests record on host memory instead.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autoplace.engine.recorder import Capture, Recorder, Streams
from autoplace.models.gqa import Step
from autoplace.models.place import HOST, Place, move, put
from autoplace.operators import device_handover
from autoplace.placement.workspace import SMALLEST_BUCKET


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What changes with every token, in one place of each GPU's memory."""

    all_turns: Tensor
    """[context, 1, rope dim / 2]"""
    columns: Tensor
    """0 … context - 1"""
    position: Tensor
    """[1] int64"""
    turns: Tensor
    """[1, 1, rope dim / 2]"""
    mask: Tensor
    """[1, context] bool"""

    @classmethod
    def on(cls, place: Place, all_turns: Tensor) -> "_Inputs":
        device, context = place.torch_device, len(all_turns)
        columns = put(torch.arange(context, device=device), place)
        position = put(torch.zeros(1, dtype=torch.int64, device=device), place)
        mask = put(torch.zeros(1, context, dtype=torch.bool, device=device), place)
        return cls(all_turns, columns, position, all_turns[:1].clone(), mask)

    def set(self, position: int) -> None:
        self.position.fill_(position)
        self.turns.copy_(self.all_turns[position : position + 1])
        torch.le(self.columns, position, out=self.mask[0])

    def step(self, bucket: int) -> Step:
        return Step(self.position, bucket, self.turns, self.mask[:, :bucket])


class GraphedDecode:
    """Graphs of one model, by bucket.

    What they keep on each GPU is declared when the model loads: `workspace.graph_bytes`.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        places: Sequence[Place],
        output: Callable[[Tensor], Tensor],
        turns: Callable[[int, Place], Tensor],
        *,
        context_tokens: int,
        capture: Callable[[Place], Capture],
    ) -> None:
        """`output`: the last layer's [1, D] → logits [1, V]; `turns`: rotations of 0 … n."""
        self._layers = layers
        self._places = places
        self._output = output
        self._context = context_tokens
        self._capture = capture
        self._inputs = {p.name: _Inputs.on(p, turns(context_tokens, p)) for p in places}
        self._streams = Streams(list(places))
        self._x: Tensor | None = None
        self._recorded: dict[int, tuple[Recorder, Tensor]] = {}

    def decode(self, x: Tensor, position: int) -> Tensor:
        """The embedding [1, D] of the token at a position → its logits [1, V] on the host."""
        with self._streams():
            self._set(x, position)
            if not self._recorded:
                self._recorded = {bucket: self._record(bucket) for bucket in self._buckets()}
            recorder, logits = self._recorded[self._bucket(position)]
            recorder.replay()
            return move(logits, HOST) if logits.is_cuda else logits.clone()

    def _buckets(self) -> list[int]:
        """From the largest."""
        sizes = [SMALLEST_BUCKET]
        while sizes[-1] < self._context:
            sizes.append(2 * sizes[-1])
        return [min(size, self._context) for size in reversed(sizes)]

    def _bucket(self, position: int) -> int:
        return min(bucket for bucket in self._buckets() if bucket > position)

    def _set(self, x: Tensor, position: int) -> None:
        first = self._places[0]
        if self._x is None:
            self._x = put(torch.empty(x.shape, dtype=x.dtype, device=first.torch_device), first)
        self._x.copy_(x)
        for inputs in self._inputs.values():
            inputs.set(position)

    def _record(self, bucket: int) -> tuple[Recorder, Tensor]:
        """Run once as it is, so that every kernel is compiled and loaded; then record, and run.

        Both write what the token stores in the cache, at the same position.
        """
        self._run(bucket, move)
        gc.collect()  # nothing of before may be freed while a graph is captured
        recorder = Recorder(self._capture)
        with _recording(recorder, self._places[0]):
            logits = self._run(bucket, recorder.cross)
        return recorder, logits

    def _run(self, bucket: int, cross: Callable[[Tensor, Place], Tensor]) -> Tensor:
        assert self._x is not None
        x, here = self._x, self._places[0]
        for layer, place in zip(self._layers, self._places, strict=True):
            if place != here:
                x, here = cross(x, place), place
            x = layer(x, self._inputs[place.name].step(bucket))
        return self._output(x)


@contextmanager
def _recording(recorder: Recorder, place: Place) -> Iterator[None]:
    with device_handover.recorded(recorder):
        recorder.begin(place)
        try:
            yield
        except BaseException:
            recorder.abandon()
            raise
        recorder.end()
