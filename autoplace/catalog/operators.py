"""What each operator is: where it runs, which types it takes, and the bytes of its weights.

Formulas: ktransformers-rules section 3 and the engine's own layout, which tests compare. Marlin
pads K (in) to 128 and N (out) to 64; a group of 64 weights has one scale.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autoplace.weights.ggml import GGMLType, TensorInfo

CPU_TYPES = frozenset(GGMLType)
"""The CPU operators read the file's own blocks, of every type that autoplace dequantises."""
MARLIN_GROUP = 64
MARLIN_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Operator(ABC):
    """One operator of the rules' `generate_op`."""

    name: str
    kind: str
    """`linear` or `experts`."""
    device_kinds: frozenset[str]
    """`cpu`, `gpu`."""
    engines: frozenset[str]
    """Engines that run it."""
    ggml_types: frozenset[GGMLType] = CPU_TYPES
    """Types of a file's tensors that `builtin` makes it from."""
    options: tuple[str, ...] = ()
    """Keyword arguments of a rule that it understands, beside devices and operators."""
    compute_capability: tuple[int, int] | None = None
    """The least that a GPU must have."""
    keeps_blocks: bool = False
    """Keeps the file's blocks, mapped or copied with their rows interleaved: the same bytes, and
    nothing is dequantised at load."""

    @abstractmethod
    def matrix_bytes(self, info: TensorInfo, *, dtype_bytes: int, num_bits: int) -> int:
        """Bytes of one weight tensor: a linear (out, in) or experts (E, out, in)."""

    def weight_bytes(
        self,
        infos: Sequence[TensorInfo],
        *,
        dtype_bytes: int = 2,
        num_bits: int = 4,
        scale_bytes: int = 2,
    ) -> int:
        """Bytes on its device of modules with these tensors; biases are in the dtype.

        A weight that is a vector is a linear with one output. `num_bits` and `scale_bytes` matter
        to the Marlin operators only.
        """
        return sum(
            info.n_elements * dtype_bytes
            if info.name.endswith(".bias")
            else self._matrix_bytes(info, dtype_bytes, num_bits, scale_bytes)
            for info in infos
        )

    def _matrix_bytes(
        self, info: TensorInfo, dtype_bytes: int, num_bits: int, scale_bytes: int
    ) -> int:
        return self.matrix_bytes(info, dtype_bytes=dtype_bytes, num_bits=num_bits)


@dataclass(frozen=True)
class TorchOperator(Operator):
    """Weights in the engine's dtype."""

    def matrix_bytes(self, info: TensorInfo, *, dtype_bytes: int, num_bits: int) -> int:
        return info.n_elements * dtype_bytes


@dataclass(frozen=True)
class BlockOperator(Operator):
    """Weights as the file's own blocks."""

    def matrix_bytes(self, info: TensorInfo, *, dtype_bytes: int, num_bits: int) -> int:
        return info.n_bytes


@dataclass(frozen=True)
class MarlinOperator(Operator):
    """Symmetric 4 or 8 bits in groups of 64, re-quantised from the dequantised weight."""

    def matrix_bytes(self, info: TensorInfo, *, dtype_bytes: int, num_bits: int) -> int:
        return self._matrix_bytes(info, dtype_bytes, num_bits, 2)

    def _matrix_bytes(
        self, info: TensorInfo, dtype_bytes: int, num_bits: int, scale_bytes: int
    ) -> int:
        return marlin_bytes(info.shape, num_bits=num_bits, scale_bytes=scale_bytes)


def marlin_bytes(shape: tuple[int, ...], *, num_bits: int = 4, scale_bytes: int = 2) -> int:
    """Packed weights and scales of (…, out, in); bf16 scales but in KTransformers 0.2.1."""
    *lead, n, k = shape if len(shape) > 1 else (1, *shape)
    k, n = -(-k // 128) * 128, -(-n // 64) * 64
    return prod(lead) * (k * n * num_bits // 8 + k // MARLIN_GROUP * n * scale_bytes)


_KT = frozenset({"ktransformers-0.2.1", "ktransformers-0.3", "ktransformers-0.3.2"})
_ALL = frozenset({"builtin"}) | _KT
_CPU, _GPU = frozenset({"cpu"}), frozenset({"gpu"})
_MARLIN_OPTIONS = ("num_bits", "group_size")

OPERATORS: Mapping[str, Operator] = {
    operator.name: operator
    for operator in (
        TorchOperator("KLinearTorch", "linear", _CPU | _GPU, _ALL),
        MarlinOperator(
            "KLinearMarlin",
            "linear",
            _GPU,
            _ALL,
            options=_MARLIN_OPTIONS,
            compute_capability=MARLIN_CAPABILITY,
        ),
        MarlinOperator(
            "VLinearMarlin",
            "linear",
            _GPU,
            frozenset({"ktransformers-0.3", "ktransformers-0.3.2"}),
            options=_MARLIN_OPTIONS,
            compute_capability=MARLIN_CAPABILITY,
        ),
        BlockOperator(
            "KLinearCPUInfer", "linear", _CPU, _ALL, options=("out_device",), keeps_blocks=True
        ),
        BlockOperator(
            "KExpertsCPU", "experts", _CPU, _ALL, options=("out_device",), keeps_blocks=True
        ),
        TorchOperator(
            "KExpertsTorch", "experts", _CPU | _GPU, frozenset({"builtin", "ktransformers-0.3"})
        ),
        MarlinOperator(
            "KExpertsMarlin",
            "experts",
            _GPU,
            frozenset({"builtin", "ktransformers-0.2.1", "ktransformers-0.3"}),
            options=_MARLIN_OPTIONS,
            compute_capability=MARLIN_CAPABILITY,
        ),
    )
}
"""By the name that rules use; the torch operators are tested to be exactly this set."""


def operators_of(kind: str, *, engine: str) -> tuple[Operator, ...]:
    """Operators of a kind that an engine runs."""
    return tuple(op for op in OPERATORS.values() if op.kind == kind and engine in op.engines)
