"""What the probe times alone: a layer's linears, its experts and lm_head, as the engine holds them.

GGUF blocks have their rows interleaved where the engine interleaves them. As in a real decode, each
call reads other weights than the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.models.huge_pages import host_bytes
from autoplace.native import Kernels, Weights, marlin_bytes
from autoplace.operators.host_kernels import linear_from_dense
from autoplace.placement.options import GROUPS
from autoplace.units import MIB
from autoplace.weights.ggml import BLOCKS, GGMLType, TensorInfo

MOST_BYTES = 256 * MIB
"""Of all copies of one operator's weights."""
BF16 = GGMLType.BF16
_LARGEST_BYTE = 0x30
"""Random bytes below it make small, finite scales in every format, interleaved or not."""
_PATTERN_BYTES = MIB + 64
"""Of random bytes, which are repeated: drawing all of them would take the time of the probe."""


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
        pattern = rng.integers(0, _LARGEST_BYTE, min(n_bytes, _PATTERN_BYTES), np.uint8)
        self.data.numpy()[:] = np.resize(pattern, n_bytes)

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

    def plain(self, copy: int) -> Tensor:
        """One matrix of the dense family: [rows, width]."""
        start = copy % self.num_copies * self.copy_bytes
        data = self.data[start : start + self.matrix_bytes]
        return data.view(torch.bfloat16).view(self.rows, self.width)


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
    """Some matrices in one family, multiplied one after the other."""

    def __init__(
        self, infos: Sequence[TensorInfo], most_copies: int, family: str, interleaves: Interleaves
    ) -> None:
        one = sum(info.n_elements for info in infos) * 2
        copies = max(1, min(most_copies, MOST_BYTES // one))
        self.stacks = [stack_of(info, family, 1, copies, interleaves) for info in infos]
        self.family = family
        self.n_bytes = sum(stack.matrix_bytes for stack in self.stacks)
        self.num_weights = sum(info.n_elements for info in infos)
        self.rows_a_token = 1.0

    def run(self, kernels: Kernels, tokens: int, copy: int) -> None:
        """All of them on so many tokens."""
        for stack in self.stacks:
            if self.family == "dense":
                linear_from_dense(_ones(tokens, stack.width), stack.plain(copy), None)
                continue
            x, out = _rows(tokens, stack.width), _rows(tokens, stack.rows)
            shape = (tokens, stack.width, stack.rows)
            weights = stack.weights(copy)
            kernels.linear_of(x.ctypes.data, BF16, weights, shape, out.ctypes.data, BF16)


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


def layer_linears(spec: ModelSpec, family: str, interleaves: Interleaves) -> Linears:
    """The linears of one usual layer."""
    infos = [
        info
        for role in (*GROUPS["attention"], *GROUPS["mlp"])
        for module in spec.of_role(role, usual_layer(spec))
        for info in spec.tensor_infos(module)
        if len(info.shape) == 2
    ]
    return Linears(infos, spec.geometry.num_layers, family, interleaves)


def head(spec: ModelSpec, family: str, interleaves: Interleaves) -> Linears:
    """lm_head: one large product, read at another rate than the small ones of a layer."""
    (module,) = spec.of_role(Role.LM_HEAD)
    infos = [info for info in spec.tensor_infos(module) if len(info.shape) == 2]
    return Linears(infos, 1, family, interleaves)


def layer_experts(spec: ModelSpec, family: str, interleaves: Interleaves) -> Experts:
    """The routed experts of usual layers. Asserts that the model has some."""
    return Experts(spec, usual_layer(spec), family, interleaves)


def usual_layer(spec: ModelSpec) -> int:
    """The first with routed experts; the last of a model that has none."""
    return spec.moe_layers[0] if spec.moe_layers else spec.geometry.num_layers - 1


def _ones(tokens: int, width: int) -> Tensor:
    return torch.ones(tokens, width, dtype=torch.bfloat16)


def _rows(tokens: int, width: int) -> NDArray[np.uint16]:
    """bfloat16 ones, or room for results."""
    return np.full((tokens, width), 0x3F80, np.uint16)
