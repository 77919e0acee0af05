"""Bytes of one module by the operator that holds it: worked out once a model, then looked up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.catalog.operators import OPERATORS, Operator
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.placement.workspace import load_stage_bytes, load_transient_bytes
from autoplace.weights.ggml import TensorInfo

DEFAULT_DEVICE = "cuda:0"
"""Of modules that a rule file leaves out (KTransformers up to 0.3.0)."""
_EXPERT_BIAS = ".exp_probs_b.bias"
"""DeepSeek-V3's bias per expert stays float32."""


@dataclass(frozen=True)
class ModuleBytes:
    """One module as one operator holds it."""

    weights: int
    host_transient: int
    """The most host bytes taken beside the weights while it loads to another device (builtin)."""
    host_transient_there: int
    """The same when its weights are on the host too: those of its tensors so far are included."""
    gpu_peak: int
    """On a GPU that it loads to: the most of its tensors so far and what one arrives in."""


@dataclass
class SpecBytes:
    """Sizes of a model's modules for one dtype and Marlin scale."""

    spec: ModelSpec
    dtype_bytes: int
    scale_bytes: int

    def __post_init__(self) -> None:
        self._sizes: dict[tuple[str, str | None, int], ModuleBytes] = {}

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Modules with tensors, in loading order."""
        return tuple(module for module in self.spec.modules if module.tensors)

    def of_assignment(self, assignment: Assignment) -> Iterator[tuple[str, ModuleBytes]]:
        """Device and sizes of every module with tensors, in loading order."""
        for module in self.modules:
            assigned = assignment.modules.get(module.path)
            device = assigned.device if assigned else DEFAULT_DEVICE
            yield device, self.of(module, assigned)

    def of(self, module: Module, assigned: ModuleAssignment | None) -> ModuleBytes:
        """The module by the operator it is assigned, in the dtype where there is none."""
        operator = assigned.operator if assigned else None
        num_bits = assigned.kwargs.get("num_bits", 4) if assigned else 4
        key = (module.path, operator, num_bits if isinstance(num_bits, int) else 4)
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = self._size(module, OPERATORS.get(operator or ""), key[2])
        return size

    def _size(self, module: Module, operator: Operator | None, num_bits: int) -> ModuleBytes:
        """Tensors that become one are allocated together; then each is dequantised."""
        weights = transient = there = gpu_peak = 0
        for infos in _allocated_together(module, self.spec.tensor_infos(module)):
            weights += sum(self._tensor_bytes(info, operator, num_bits) for info in infos)
            dequantised = max(_dequantised_bytes(info, operator) for info in infos)
            transient = max(transient, dequantised)
            there = max(there, weights + dequantised)
            gpu_peak = max(gpu_peak, weights + max(_staged_bytes(info, operator) for info in infos))
        return ModuleBytes(weights, transient, there, gpu_peak)

    def _tensor_bytes(self, info: TensorInfo, operator: Operator | None, num_bits: int) -> int:
        if operator is None:
            in_dtype = not info.name.endswith(_EXPERT_BIAS)
            return info.n_elements * (self.dtype_bytes if in_dtype else 4)
        return operator.weight_bytes(
            (info,),
            dtype_bytes=self.dtype_bytes,
            num_bits=num_bits,
            scale_bytes=self.scale_bytes,
        )


def _allocated_together(
    module: Module, infos: Sequence[TensorInfo]
) -> Iterator[Sequence[TensorInfo]]:
    """Gate, up, down of experts however a file cuts them; a split kv_b; else each tensor."""
    num_parts = {Role.EXPERTS: 3, Role.KV_B: 1}.get(module.role, len(infos))
    each = len(infos) // num_parts
    for start in range(0, len(infos), each):
        yield infos[start : start + each]


def _dequantised_bytes(info: TensorInfo, operator: Operator | None) -> int:
    return 0 if _stays_mapped(info, operator) else load_transient_bytes(info.shape)


def _staged_bytes(info: TensorInfo, operator: Operator | None) -> int:
    return 0 if _stays_mapped(info, operator) else load_stage_bytes(info.shape)


def _stays_mapped(info: TensorInfo, operator: Operator | None) -> bool:
    return operator is not None and operator.keeps_blocks and not info.name.endswith(".bias")


_CACHE: dict[tuple[str, int, int], SpecBytes] = {}
_CACHE_SIZE = 16


def module_bytes(spec: ModelSpec, *, dtype_bytes: int, scale_bytes: int) -> SpecBytes:
    """The sizes of a model, shared by all plans: a fingerprint stands for all its tensors."""
    key = (spec.fingerprint, dtype_bytes, scale_bytes)
    if key not in _CACHE:
        if len(_CACHE) >= _CACHE_SIZE:
            _CACHE.clear()
        _CACHE[key] = SpecBytes(spec, dtype_bytes, scale_bytes)
    return _CACHE[key]
