"""Memory of an assignment in KTransformers: exact weights and cache, and bounds for the rest.

Source: KTransformers' own code as ktransformers-rules section 3 traces it; the constants are
those of the engine's `MemoryProfile`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from autoplace.architectures.geometry import Geometry, Mla
from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.catalog.engines import MemoryProfile
from autoplace.placement.assignment import Assignment
from autoplace.placement.module_bytes import DEFAULT_DEVICE, SpecBytes, module_bytes
from autoplace.placement.totals import DeviceMemory
from autoplace.workload import Workload

_HOST = "cpu"
_BYTES = 2
"""KTransformers runs in bfloat16, its cache too."""
_CACHE_PAGE = 64
"""Tokens: MLA's cache grows by pages."""
_CHUNK = 8192
"""Tokens of a prefill chunk unless it is launched with another."""
_SERVER_CHUNK = 256
"""The same in the server (balance_serve)."""
_SERVER_PAGE = 256
"""Tokens: the server's cache grows by pages."""
_SERVER_EXPERTS = "KTransformersExpertsV2"


@dataclass(frozen=True)
class _Subject:
    spec: ModelSpec
    assignment: Assignment
    profile: MemoryProfile
    workload: Workload
    numa_copies: int

    def device(self, module: Module) -> str:
        assigned = self.assignment.modules.get(module.path)
        return assigned.device if assigned else DEFAULT_DEVICE

    def operator(self, module: Module) -> str | None:
        assigned = self.assignment.modules.get(module.path)
        return assigned.operator if assigned else None

    @cached_property
    def is_served(self) -> bool:
        """Whether the rules are for the server (balance_serve), by its wrapper of experts."""
        entries = (self.assignment.modules.get(m.path) for m in self.spec.of_role(Role.EXPERTS))
        names = (entry.class_name or "" for entry in entries if entry is not None)
        return any(name.endswith(_SERVER_EXPERTS) for name in names)

    @property
    def prefill_tokens(self) -> int:
        chunk = _SERVER_CHUNK if self.is_served else _CHUNK
        return min(chunk, self.workload.prompt_tokens)


def plan_ktransformers(
    spec: ModelSpec,
    assignment: Assignment,
    profile: MemoryProfile,
    workload: Workload,
    *,
    numa_copies: int = 1,
) -> Mapping[str, DeviceMemory]:
    """Bytes by device. Every GPU that the assignment names anywhere gets a context.

    `numa_copies`: how often the host holds the experts (rules section 3: once a NUMA node in a
    build with USE_NUMA=1, else once, memory-mapped).
    """
    subject = _Subject(spec, assignment, profile, workload, numa_copies)
    named = {entry.device for entry in assignment.modules.values()}
    context = {name: profile.context_bytes for name in named if name != _HOST}
    weights, load_peak = _load(subject, context)
    cache = _cache(subject)
    workspace = _workspace(subject)
    return {
        device: DeviceMemory(
            weights=weights.get(device, 0),
            kv_cache=cache.get(device, 0),
            workspace=workspace.get(device, 0) + context.get(device, 0),
            load_peak=load_peak.get(device, 0),
        )
        for device in sorted({_HOST, *named, *weights, *cache, *workspace})
    }


def _load(
    subject: _Subject, context: Mapping[str, int]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Weights, and the largest total while they load in KTransformers' order."""
    scale_bytes = subject.profile.marlin_scale_bytes
    sizes = module_bytes(subject.spec, dtype_bytes=_BYTES, scale_bytes=scale_bytes)
    weights: dict[str, int] = defaultdict(int)
    peak: dict[str, int] = defaultdict(int)
    for module in _loading_order(sizes, subject.profile):
        device = subject.device(module)
        size = sizes.of(module, subject.assignment.modules.get(module.path)).weights
        if device == _HOST and module.role is Role.EXPERTS:
            size *= subject.numa_copies
        resident = context.get(device, 0) + weights[device]
        transient = size if device == _HOST else _packing_bytes(subject, module, size)
        peak[device] = max(peak[device], resident + transient)
        weights[device] += size
    return weights, peak


def _loading_order(sizes: SpecBytes, profile: MemoryProfile) -> Iterator[Module]:
    if not profile.lm_head_first:
        yield from sizes.modules
        return
    yield sizes.modules[-1]
    yield from sizes.modules[:-1]


def _packing_bytes(subject: _Subject, module: Module, size: int) -> int:
    """The most taken while a module is made on its GPU, its final weights (`size`) included.

    Marlin packs a linear, or one expert after the other; Torch stacks experts, and dequantises
    what is not replaced, beside the result.
    """
    infos = subject.spec.tensor_infos(module)
    largest = max(info.n_elements for info in infos)
    per_weight = subject.profile.marlin_load_bytes_per_weight
    operator = subject.operator(module)
    if operator in ("KLinearMarlin", "VLinearMarlin"):
        return max(size, per_weight * largest)
    if operator == "KExpertsMarlin":
        one_expert = largest // infos[0].shape[0] if len(infos[0].shape) == 3 else largest
        return size + per_weight * one_expert
    return size + _BYTES * largest


def _cache(subject: _Subject) -> Mapping[str, int]:
    attention, tokens = subject.spec.geometry.attention, subject.workload.context_tokens
    if isinstance(attention, Mla):
        width = attention.kv_lora_rank + attention.qk_rope_dim
        tokens = -(-tokens // _CACHE_PAGE) * _CACHE_PAGE
    else:
        width = 2 * attention.num_kv_heads * attention.head_dim
        page = _SERVER_PAGE if subject.is_served else 1
        tokens = -(-tokens // page) * page
    cache: dict[str, int] = defaultdict(int)
    for module in subject.spec.of_role(Role.ATTENTION):
        cache[subject.device(module)] += tokens * width * _BYTES
    return cache


def _workspace(subject: _Subject) -> Mapping[str, int]:
    """Attention's workspace and prefill activations, the experts' output buffers, logits."""
    geometry, profile = subject.spec.geometry, subject.profile
    workspace: dict[str, int] = defaultdict(int)
    is_mla = isinstance(geometry.attention, Mla)
    for device in {subject.device(module) for module in subject.spec.of_role(Role.ATTENTION)}:
        if device != _HOST and is_mla:
            per_token = profile.prefill_bytes_per_token * geometry.num_heads // 128
            workspace[device] += profile.attention_workspace_bytes
            workspace[device] += per_token * subject.prefill_tokens
    for device in _out_devices(subject):
        workspace[device] += expert_buffer_bytes(geometry, profile)
    if not is_mla:
        (lm_head,) = subject.spec.of_role(Role.LM_HEAD)
        logits = subject.prefill_tokens * geometry.vocab * (_BYTES + 4)
        workspace[subject.device(lm_head)] += logits
    return workspace


def _out_devices(subject: _Subject) -> set[str]:
    """GPUs that get the result of experts on the CPU; plain `cuda` and none mean the first."""
    found = set()
    for module in subject.spec.of_role(Role.EXPERTS):
        assigned = subject.assignment.modules.get(module.path)
        if assigned is not None and assigned.operator == "KExpertsCPU":
            device = assigned.kwargs.get("out_device")
            found.add(device if isinstance(device, str) and ":" in device else DEFAULT_DEVICE)
    return found


def expert_buffer_bytes(geometry: Geometry, profile: MemoryProfile) -> int:
    """KExpertsCPU's output buffers on one GPU (540 MB for DeepSeek-V3 in 0.3.2)."""
    return sum(profile.expert_buffer_rows) * geometry.hidden * _BYTES
