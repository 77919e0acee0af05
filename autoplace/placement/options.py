"""What may be chosen on each device: operators, threads, chunks, in the order they are listed."""

from collections.abc import Mapping, Sequence
from typing import Any

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.catalog import llama_cpp
from autoplace.catalog.llama_cpp import operator_named
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.placement import Choice
from autoplace.placement.settings import is_quantised
from autoplace.weights.ggml import TensorInfo
from autoplace.workload import Workload

GROUPS: Mapping[str, tuple[Role, ...]] = {
    "attention": (Role.ATTENTION_LINEAR,),
    "mlp": (Role.DENSE_LINEAR, Role.SHARED_LINEAR),
    "experts": (Role.EXPERTS,),
    "lm_head": (Role.LM_HEAD,),
}
"""Modules that share one choice on a device."""

_LINEAR = ("KLinearMarlin", "KLinearCPUInfer", "KLinearTorch", llama_cpp.LINEAR)
_EXPERTS = ("KExpertsMarlin", "KExpertsCPU", "KExpertsTorch", llama_cpp.EXPERTS)
SMALLEST_CHUNK = 32
LARGEST_CHUNK = 8192
NUM_CHUNKS = 4
FLASH_ATTENTION = ("auto", "off")
"""llama.cpp's `auto` is on wherever the devices can."""


def tensors_of(spec: ModelSpec, roles: Sequence[Role]) -> tuple[TensorInfo, ...]:
    return tuple(
        info
        for role in roles
        for module in spec.of_role(role)
        for info in spec.tensor_infos(module)
    )


def layers_with(spec: ModelSpec, roles: Sequence[Role]) -> frozenset[int]:
    return frozenset(
        module.layer for module in spec.modules if module.role in roles and module.layer is not None
    )


def choice_name(choice: Choice, *, with_device: bool = False) -> str:
    """`KLinearMarlin 4`, `cuda:0 KLinearTorch`: how a choice reads as a parameter's value."""
    parts = [choice.device] if with_device else []
    parts += [choice.operator] + ([str(choice.num_bits)] if choice.num_bits else [])
    return " ".join(parts)


def operator_choices(
    spec: ModelSpec, device: Device, roles: Sequence[Role], *, engine: str
) -> tuple[Choice, ...]:
    """Operators that can hold the modules of these roles on a device, the usual one first."""
    infos = tensors_of(spec, roles)
    names = _EXPERTS if Role.EXPERTS in roles else _LINEAR
    return tuple(
        Choice(device.name, name, num_bits)
        for name in names
        if _runs(name, device, infos, engine=engine)
        for num_bits in _bits(name, engine=engine)
    )


def _runs(name: str, device: Device, infos: Sequence[TensorInfo], *, engine: str) -> bool:
    operator = operator_named(name)
    needed = operator.compute_capability
    able = (
        needed is None or device.compute_capability is None or device.compute_capability >= needed
    )
    return (
        able
        and engine in operator.engines
        and ("gpu" if device.is_gpu else "cpu") in operator.device_kinds
        and all(info.ggml_type in operator.ggml_types for info in infos)
    )


def _bits(name: str, *, engine: str) -> tuple[int | None, ...]:
    """KTransformers does not pass `num_bits` on to its experts: they run at 4."""
    if not name.endswith("Marlin"):
        return (None,)
    return (4,) if name == "KExpertsMarlin" and engine != "builtin" else (4, 8)


def thread_choices(machine: Machine) -> tuple[int, ...]:
    """Powers of two and three quarters of the cores, up to all of them, ascending."""
    cores = machine.num_cores
    counts = {cores, max(1, cores * 3 // 4)}
    step = 1
    while step < cores:
        counts.add(step)
        step *= 2
    return tuple(sorted(counts))


def batch_choices(workload: Workload) -> tuple[int, ...]:
    """llama.cpp's logical batches: its default first, a quarter, and more for long prompts."""
    return (2048, 512, *((4096,) if workload.prompt_tokens > 2048 else ()))


def llama_cpp_settings(
    chunk: int, batch: int = 2048, flash_attn: str = "auto", kv_type: str = "f16"
) -> dict[str, Any]:
    """llama.cpp's own settings as it takes them: a logical batch is no smaller than a physical
    one, and a quantised V cache needs flash attention."""
    flash = "auto" if is_quantised(kv_type) else flash_attn
    return {"batch": max(batch, chunk), "flash_attn": flash}


def chunk_choices(workload: Workload) -> tuple[int, ...]:
    """Prefill chunks: the whole prompt, and the powers of two below it; at most four, ascending."""
    whole = min(workload.prompt_tokens, LARGEST_CHUNK)
    chunks = [whole]
    step = 1 << (whole - 1).bit_length() - 1 if whole > 1 else 0
    while step >= SMALLEST_CHUNK and len(chunks) < NUM_CHUNKS:
        chunks.append(step)
        step //= 2
    return tuple(sorted(chunks))
