"""Rates of the CPU operators at a model's shapes: weight bytes a second, and flops at prefill.

What is measured is what the engine calls: the compiled kernels, on interleaved rows where the
engine has such, and torch's product where a plain weight meets many tokens. As in a real decode,
each call reads other weights than the last.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.bench.metrics import Spread
from autoplace.models.huge_pages import host_bytes
from autoplace.native import Kernels, Weights, marlin_bytes
from autoplace.placement.options import GROUPS
from autoplace.units import MIB
from autoplace.weights.ggml import BLOCKS, GGMLType, TensorInfo

MOST_BYTES = 256 * MIB
"""Of all copies of one operator's weights."""
BF16 = GGMLType.BF16
_LARGEST_BYTE = 0x30
"""Random bytes below it make small, finite scales in every format, interleaved or not."""


@dataclass(frozen=True)
class Figure:
    """One measured rate."""

    what: str
    """`experts blocks decode`"""
    num_threads: int
    rate: Spread
    unit: str
    rows: float = 1.0
    """That meet each matrix: tokens, or tokens an expert."""


@dataclass
class Stack:
    """One matrix, or the matrices of all experts of a layer, some layers one after the other."""

    info: TensorInfo
    family: str
    num_experts: int
    num_copies: int
    interleaved: bool = False
    """GGUF blocks with rows by sixteens, as `HostBlocks` holds them."""
    data: Tensor = field(init=False)
    """uint8, random: in the pages that the engine's copies lie in."""

    def __post_init__(self) -> None:
        n_bytes = self.copy_bytes * self.num_copies
        self.data = host_bytes(n_bytes)
        rng = np.random.default_rng(0)
        self.data.numpy()[:] = rng.integers(0, _LARGEST_BYTE, n_bytes, np.uint8)

    @property
    def rows(self) -> int:
        return self.info.shape[-2]

    @property
    def width(self) -> int:
        return self.info.shape[-1]

    @property
    def matrix_bytes(self) -> int:
        """Of one matrix, one expert's."""
        if self.family.startswith("marlin"):
            return marlin_bytes(self.rows, self.width, int(self.family[-1]))
        size, n_bytes = BLOCKS[self.ggml_type]
        return self.rows * self.width // size * n_bytes

    @property
    def copy_bytes(self) -> int:
        return self.matrix_bytes * self.num_experts

    @property
    def ggml_type(self) -> GGMLType:
        return BF16 if self.family == "dense" else self.info.ggml_type

    def weights(self, copy: int) -> Weights:
        ptr = self.data.data_ptr() + copy % self.num_copies * self.copy_bytes
        if self.family.startswith("marlin"):
            return Weights(ptr, None, int(self.family[-1]))
        return Weights(ptr, self.ggml_type, interleaved=self.interleaved)


Interleaves = Callable[[GGMLType, int, int], bool]
"""Type, out features, in features → whether the engine interleaves such a matrix."""


def never_interleaved(ggml_type: GGMLType, out_features: int, in_features: int) -> bool:
    """Of `engine.interleave=off`."""
    return False


def stack_of(
    info: TensorInfo, family: str, num_experts: int, num_copies: int, interleaves: Interleaves
) -> Stack:
    """A stack as the engine holds it."""
    rows, width = info.shape[-2:]
    interleaved = family == "blocks" and interleaves(info.ggml_type, rows, width)
    return Stack(info, family, num_experts, num_copies, interleaved)


class Linears:
    """The linears of one usual layer in one family."""

    def __init__(self, spec: ModelSpec, layer: int, family: str, interleaves: Interleaves) -> None:
        infos = [
            info
            for role in (*GROUPS["attention"], *GROUPS["mlp"])
            for module in spec.of_role(role, layer)
            for info in spec.tensor_infos(module)
            if len(info.shape) == 2
        ]
        one = sum(info.n_elements for info in infos) * 2
        copies = max(1, min(spec.geometry.num_layers, MOST_BYTES // one))
        self.stacks = [stack_of(info, family, 1, copies, interleaves) for info in infos]
        self.family = family
        self.n_bytes = sum(stack.matrix_bytes for stack in self.stacks)
        self.num_weights = sum(info.n_elements for info in infos)
        self.rows_a_token = 1.0

    def run(self, kernels: Kernels, tokens: int, copy: int) -> None:
        """All linears of the layer on so many tokens."""
        for stack in self.stacks:
            if self.family == "dense" and tokens > 1:
                self._product(stack, tokens, copy)
                continue
            x, out = _rows(tokens, stack.width), _rows(tokens, stack.rows)
            shape = (tokens, stack.width, stack.rows)
            weights = stack.weights(copy)
            kernels.linear_of(x.ctypes.data, BF16, weights, shape, out.ctypes.data, BF16)

    def _product(self, stack: Stack, tokens: int, copy: int) -> None:
        start = copy % stack.num_copies * stack.copy_bytes
        data = stack.data[start : start + stack.copy_bytes]
        weight = data.view(torch.bfloat16).view(stack.rows, stack.width)
        functional.linear(torch.ones(tokens, stack.width, dtype=torch.bfloat16), weight)


class Experts:
    """The routed experts of some layers in one family."""

    def __init__(self, spec: ModelSpec, layer: int, family: str, interleaves: Interleaves) -> None:
        assert spec.geometry.moe is not None
        (module,) = spec.of_role(Role.EXPERTS, layer)
        infos = spec.tensor_infos(module)
        infos = tuple(infos[i * len(infos) // 3] for i in range(3))
        moe = spec.geometry.moe
        matrices = [TensorInfo(i.name, i.shape[-2:], i.ggml_type) for i in infos]
        expert_bytes = sum(info.n_elements for info in matrices) * 2
        self.top_k = moe.top_k
        self.num_experts = max(self.top_k, min(moe.num_experts, MOST_BYTES // expert_bytes))
        copies = MOST_BYTES // (expert_bytes * self.num_experts)
        copies = max(1, min(len(spec.moe_layers), copies))
        self.stacks = [
            stack_of(info, family, self.num_experts, copies, interleaves) for info in matrices
        ]
        self.n_bytes = sum(stack.matrix_bytes for stack in self.stacks) * self.top_k
        self.num_weights = sum(info.n_elements for info in matrices) * self.top_k
        self.rows_a_token = self.top_k / self.num_experts
        self._rng = np.random.default_rng(1)

    def run(self, kernels: Kernels, tokens: int, copy: int) -> None:
        """One layer's experts on so many tokens, routed at random."""
        gate, up, down = (stack.weights(copy) for stack in self.stacks)
        hidden, inner = self.stacks[0].width, self.stacks[0].rows
        ids = np.argsort(self._rng.random((tokens, self.num_experts)), 1)[:, : self.top_k]
        ids = np.ascontiguousarray(ids, np.int64)
        shares = np.full((tokens, self.top_k), 1 / self.top_k, np.float32)
        x, out = _rows(tokens, hidden), _rows(tokens, hidden)
        kernels.experts(
            x.ctypes.data,
            BF16,
            tokens,
            hidden,
            ids.ctypes.data,
            shares.ctypes.data,
            self.top_k,
            self.num_experts,
            inner,
            gate,
            up,
            down,
            out.ctypes.data,
            BF16,
        )


def measure_rates(
    spec: ModelSpec,
    kernels: Kernels,
    families: Sequence[str],
    threads: Sequence[int],
    *,
    set_threads: Callable[[int], None],
    prefill_tokens: Sequence[int],
    deadline_s: float,
    point_limit_s: float = 1.0,
    interleave: bool = True,
) -> Iterator[Figure]:
    """Decode and prefill rates of every kind and family, by threads; what is late is left out.

    `deadline_s` is on `time.monotonic`'s clock. `interleave`: as the engine is told to.
    """
    interleaves = kernels.interleave_pays if interleave else never_interleaved
    layer = spec.moe_layers[0] if spec.moe_layers else spec.geometry.num_layers - 1
    kinds: list[tuple[str, type[Linears] | type[Experts]]] = [("linear", Linears)]
    kinds += [("experts", Experts)] if spec.moe_layers else []
    lengths = (1, *prefill_tokens)
    num_points = len(lengths) * len(kinds) * len(families) * len(threads)
    for kind, make in kinds:
        for family in families:
            subject = make(spec, layer, family, interleaves)
            for num_threads in threads:
                set_threads(num_threads)
                for tokens in lengths:
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return
                    seconds = _times(
                        partial(subject.run, kernels, tokens),
                        limit_s=min(point_limit_s, left_s / num_points),
                    )
                    num_points = max(1, num_points - 1)
                    yield from _figures(kind, family, num_threads, tokens, subject, seconds)


def _figures(
    kind: str,
    family: str,
    num_threads: int,
    tokens: int,
    subject: Linears | Experts,
    seconds: list[float],
) -> Iterator[Figure]:
    """At one token both the bytes and the work a second, beyond it the work."""
    if tokens == 1:
        rate = _quartiles([subject.n_bytes / s for s in seconds])
        yield Figure(f"{kind} {family} decode", num_threads, rate, "B/s")
    work = _quartiles([2 * tokens * subject.num_weights / s for s in seconds])
    rows = tokens * subject.rows_a_token
    yield Figure(f"{kind} {family} prefill", num_threads, work, "flop/s", rows)


def _quartiles(rates: Sequence[float]) -> Spread:
    ranked = sorted(rates)
    quarter = len(ranked) // 4
    return Spread(median(ranked), ranked[quarter], ranked[-1 - quarter], len(ranked))


def _times(call: Callable[[int], None], *, limit_s: float) -> list[float]:
    """Seconds of calls until the limit, at least three, after two for warming up."""
    call(0)
    call(1)
    seconds: list[float] = []
    end = time.monotonic() + limit_s
    while len(seconds) < 3 or (time.monotonic() < end and len(seconds) < 2000):
        begin = time.perf_counter()
        call(len(seconds) + 2)
        seconds.append(time.perf_counter() - begin)
    return seconds


def _rows(tokens: int, width: int) -> NDArray[np.uint16]:
    """bfloat16 ones, or room for results."""
    return np.full((tokens, width), 0x3F80, np.uint16)
