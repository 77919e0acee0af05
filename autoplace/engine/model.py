"""HybridModel: prefill in chunks, decode one token at a time, logits of every position."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autoplace.architectures.geometry import Geometry, Mla
from autoplace.engine.graphs import GraphedDecode
from autoplace.engine.one_token import Stretch, stretches
from autoplace.engine.recorder import Capture, CudaCaptures
from autoplace.errors import AutoplaceError
from autoplace.models.allocation import Allocator
from autoplace.models.attention import causal_mask
from autoplace.models.backend import kernels
from autoplace.models.gqa import Step
from autoplace.models.out_of_memory import translated
from autoplace.models.place import HOST, Place, move, put
from autoplace.models.rotary import inverse_frequencies, rotations, yarn_attention_factor
from autoplace.operators.matrices import mapped_blocks
from autoplace.placement.workspace import LOGIT_ROWS

POSITIONS_AHEAD = 64
"""Rotations that are made at a time while one token after the other is decoded: some KiB."""


class Forward:
    """What layers of one forward share: rotations and mask, made once for each device."""

    def __init__(self, geometry: Geometry) -> None:
        self._frequencies = inverse_frequencies(geometry.rope)
        mla = isinstance(geometry.attention, Mla)
        self._factor = 1.0 if mla else yarn_attention_factor(geometry.rope)
        self._ahead: tuple[int, Tensor] | None = None

    def step(self, start: int, num_tokens: int, place: Place) -> Step:
        end = start + num_tokens
        mask = causal_mask(num_tokens, end, place.torch_device)
        turns = self.turns(start, end, place)
        return Step(start, end, turns, None if mask is None else put(mask, place))

    def turns(self, start: int, end: int, place: Place) -> Tensor:
        """Rotations of positions start … end: [end - start, 1, rope dim / 2] complex64."""
        if end - start == 1:
            turns = self._of_one(start)
        else:
            turns = rotations(torch.arange(start, end), self._frequencies, self._factor)
        return put(turns.to(place.torch_device), place)

    def _of_one(self, position: int) -> Tensor:
        """From those of the positions around it, which are made together."""
        first = position - position % POSITIONS_AHEAD
        if self._ahead is None or self._ahead[0] != first:
            around = torch.arange(first, first + POSITIONS_AHEAD)
            self._ahead = first, rotations(around, self._frequencies, self._factor)
        return self._ahead[1][position - first : position - first + 1]


class HybridModel:
    """A loaded model and its cache. One sequence at a time; `reset` starts the next."""

    def __init__(
        self,
        root: nn.Module,
        geometry: Geometry,
        places: Sequence[Place],
        *,
        allocator: Allocator,
        prefill_chunk: int,
        context_tokens: int,
        no_graphs: str | None = None,
    ) -> None:
        """`no_graphs`: what keeps CUDA graphs from decoding, if anything does."""
        self.root = root
        self.geometry = geometry
        self._places = places
        self._allocator = allocator
        self._prefill_chunk = prefill_chunk
        self._context_tokens = context_tokens
        self._forward = Forward(geometry)
        self._embed = root.get_submodule("model.embed_tokens")
        self._layers = [root.get_submodule(f"model.layers.{i}") for i in range(len(places))]
        self._singly: list[Stretch] = list(zip(self._layers, places, strict=True))
        self._together: list[Stretch] = stretches(self._layers, places)
        self._norm = root.get_submodule("model.norm")
        self._lm_head = root.get_submodule("lm_head")
        self._graphs: GraphedDecode | None = None
        self._no_graphs = no_graphs
        self.position = 0
        """Tokens in the cache."""
        self.hand_over: Callable[[Tensor, Place], Tensor] = move
        """Brings activations to where the next layers are; replaced by who times it."""

    @property
    def uses_graphs(self) -> bool:
        return self._graphs is not None

    @property
    def places(self) -> Sequence[Place]:
        """Of the layers' activations."""
        return self._places

    @property
    def layers(self) -> Sequence[nn.Module]:
        return self._layers

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """Decode by the modules themselves within it, so that they can be watched."""
        graphs, self._graphs = self._graphs, None
        try:
            yield
        finally:
            self._graphs = graphs

    def use_graphs(self, capture: Callable[[Place], Capture] | None = None) -> None:
        """Decode by CUDA graphs in pieces around the host's work; bytes: see `GraphedDecode`.

        Raise `AutoplaceError` where a layer, or what an operator needs, is not on a GPU. `capture`
        is replaced by tests, which have no GPU.
        """
        if self._no_graphs is not None:
            raise AutoplaceError(f"expected a placement for CUDA graphs, but {self._no_graphs}")
        self._graphs = GraphedDecode(
            self._layers,
            self._places,
            self._output,
            lambda end, place: self._forward.turns(0, end, place),
            context_tokens=self._context_tokens,
            capture=capture or CudaCaptures(),
        )

    def prefill(self, tokens: list[int]) -> Tensor:
        """Logits [V] float32 of the prompt's last position, on the host."""
        last: Tensor | None = None
        with torch.inference_mode(), translated("a prefill"):
            for chunk in self._chunks(tokens):
                last = self._hidden(chunk)[-1:]
            if last is None:
                raise AutoplaceError("expected a prompt of at least one token but got none")
            return self._logits(last)[0]

    def decode(self, token: int) -> Tensor:
        """Logits [V] float32 after one more token, on the host."""
        with torch.inference_mode(), translated("a decode step"):
            if self._graphs is None:
                return self._logits(self._hidden([token]))[0]
            self._refuse_beyond_context(1)
            logits = self._graphs.decode(self._embedded([token]), self.position)[0]
            self.position += 1
            return logits

    def logits(self, tokens: list[int]) -> Tensor:
        """Logits [T, V] float32 of every position of a prompt, on the host."""
        with torch.inference_mode(), translated("a prefill"):
            rows = [
                self._logits(part)
                for chunk in self._chunks(tokens)
                for part in torch.split(self._hidden(chunk), LOGIT_ROWS)
            ]
            return torch.cat(rows)

    def reset(self) -> None:
        """Forget the sequence; the cache's memory stays."""
        self.position = 0

    def mapped_weights(self) -> list[NDArray[np.uint8]]:
        """Blocks that operators read from the memory map."""
        return mapped_blocks(self.root)

    def close(self) -> None:
        """Let go of the tensors and give their bytes back to the ledger."""
        for name in (
            "root",
            "_embed",
            "_layers",
            "_singly",
            "_together",
            "_norm",
            "_lm_head",
            "_graphs",
        ):
            setattr(self, name, None)
        self._allocator.close()

    def _chunks(self, tokens: list[int]) -> list[list[int]]:
        step = self._prefill_chunk
        return [tokens[first : first + step] for first in range(0, len(tokens), step)]

    def _hidden(self, tokens: list[int]) -> Tensor:
        """Normed hidden states [T, D] of the next tokens, on the last layer's device."""
        self._refuse_beyond_context(len(tokens))
        x = self._embedded(tokens)
        steps: dict[str, Step] = {}
        together = len(tokens) == 1 and kernels() is not None
        before = cast(Place, self._embed.place)
        for stretch, place in self._together if together else self._singly:
            if place.name not in steps:
                steps[place.name] = self._forward.step(self.position, len(tokens), place)
            if place != before:
                x, before = self.hand_over(x, place), place
            x = stretch(x, steps[place.name])
        self.position += len(tokens)
        return cast(Tensor, self._norm(x))

    def _embedded(self, tokens: list[int]) -> Tensor:
        place = cast(Place, self._embed.place)
        return cast(Tensor, self._embed(move(torch.tensor(tokens), place)))

    def _logits(self, hidden: Tensor) -> Tensor:
        return move(self._lm_head(hidden).float(), HOST)

    def _output(self, x: Tensor) -> Tensor:
        """Logits [1, V] float32 of the last layer's output, on its device."""
        return cast(Tensor, self._lm_head(self._norm(x)).float())

    def _refuse_beyond_context(self, num_tokens: int) -> None:
        if self.position + num_tokens > self._context_tokens:
            raise AutoplaceError(
                f"the KV cache is made for {self._context_tokens} tokens but "
                f"{self.position + num_tokens} were asked for"
            )
