"""What each engine can express, how it is launched, and its constants of memory with sources.

"rules §3" is ktransformers-rules section 3, drawn from KTransformers' sources and issue tracker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.units import GIB, MIB
from autoplace.weights.ggml import GGMLType


@dataclass(frozen=True)
class MemoryProfile:
    """What an engine takes beside weights and cache. All zero for `builtin`, which is exact."""

    marlin_scale_bytes: int = 2
    """Of one scale: bf16; float32 in 0.2.1, which dequantises to float32 (rules §0)."""
    context_bytes: int = 0
    """Runtime context of each GPU that is used at all."""
    attention_workspace_bytes: int = 0
    """flashinfer's MLA workspace on each GPU with a layer (rules §3: 128 MiB)."""
    marlin_load_bytes_per_weight: int = 0
    """Peak while one linear is packed on its GPU (rules §3: 14, traced in `quantize_weights`)."""
    lm_head_first: bool = False
    """lm_head is loaded before all else, "because its big inter result" (rules §1.1)."""
    expert_buffer_rows: tuple[int, ...] = (1,)
    """Tokens of each of KExpertsCPU's output buffers on a GPU (`cuda_graphs` in
    operators/experts.py of each version, with `max_batch_size: 4` of configs/config.yaml)."""
    prefill_bytes_per_token: int = 0
    """Attention's activations for a token of the chunk at 128 heads, with the key dimensions of
    DeepSeek-V2 and V3 (rules §3: about 0.3 MB)."""


@dataclass(frozen=True)
class Engine:
    """An engine that a plan, a check or a study is for."""

    name: str
    what: str
    measured: bool
    """Whether autoplace can run it here; otherwise it is planned, checked and exported for."""
    uses_rules: bool
    """Driven by a rule file; otherwise by flags."""
    memory: MemoryProfile = MemoryProfile()
    gpu_experts: tuple[str, ...] = ()
    """Operators that hold routed experts on a GPU."""
    gpu_expert_types: frozenset[GGMLType] = frozenset(GGMLType)
    """Types of a file's experts that those can be made from."""
    splits_layers: bool = True
    """Whether layers may be on several devices."""
    gpu_experts_disable_cuda_graph: bool = False
    launch: str = ""
    """Command line, with {rules}, {model}, {gguf}, {threads} and {graph} to fill in."""


_KT_GPU_TYPES = frozenset(
    {
        GGMLType.F32,
        GGMLType.F16,
        GGMLType.BF16,
        GGMLType.Q8_0,
        GGMLType.Q2_K,
        GGMLType.Q3_K,
        GGMLType.Q4_K,
        GGMLType.Q5_K,
        GGMLType.Q6_K,
        GGMLType.IQ4_XS,
    }
)
"""What KTransformers dequantises on a GPU: not Q4_0 and Q5_0 (rules §2), so not the `down` of
DeepSeek-V2-Lite's Q4_K_M."""

_CHAT = "python -m ktransformers.local_chat --model_path {model} --gguf_path {gguf}"
_CONTEXT_BYTES = GIB // 2
"""Not in any source: calibrated 0.4 to 0.7 GB (prediction section 1)."""

_BATCHES = (1, 2, 3, 4, 64)
"""Decode batches that every version since 0.2.4 has a buffer for. The last one is the chunk: 256
of configs/config.yaml up to 0.3.1, local_chat's 8192 in 0.3.2, which has each 1,024 up to it."""

_KT_0_2_1 = MemoryProfile(
    marlin_scale_bytes=4,
    context_bytes=_CONTEXT_BYTES,
    attention_workspace_bytes=128 * MIB,
    marlin_load_bytes_per_weight=14,
    prefill_bytes_per_token=300_000,
)
_KT_0_3 = replace(
    _KT_0_2_1, marlin_scale_bytes=2, lm_head_first=True, expert_buffer_rows=(*_BATCHES, 256)
)
_KT_0_3_2 = replace(
    _KT_0_3, expert_buffer_rows=(*_KT_0_3.expert_buffer_rows, 512, *range(1024, 8192 + 1, 1024))
)

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "builtin",
            "autoplace's own hybrid engine",
            measured=True,
            uses_rules=True,
            gpu_experts=("KExpertsMarlin", "KExpertsTorch"),
            launch="python -m autoplace bench rules={rules} model.path={gguf}",
        ),
        Engine(
            "ktransformers-0.2.1",
            "KTransformers 0.2.1 and 0.2.1.post1",
            measured=False,
            uses_rules=True,
            memory=_KT_0_2_1,
            gpu_experts=("KExpertsMarlin",),
            gpu_expert_types=_KT_GPU_TYPES,
            gpu_experts_disable_cuda_graph=True,
            launch=f"{_CHAT} --optimize_rule_path {{rules}} --cpu_infer {{threads}}{{graph}}",
        ),
        Engine(
            "ktransformers-0.3",
            "KTransformers 0.2.2 to 0.3",
            measured=False,
            uses_rules=True,
            memory=_KT_0_3,
            gpu_experts=("KExpertsMarlin", "KExpertsTorch"),
            gpu_expert_types=_KT_GPU_TYPES,
            gpu_experts_disable_cuda_graph=True,
            launch=f"{_CHAT} --optimize_config_path {{rules}} --cpu_infer {{threads}}{{graph}}",
        ),
        Engine(
            "ktransformers-0.3.2",
            "KTransformers 0.3.1 and 0.3.2, whose experts load on the CPU only",
            measured=False,
            uses_rules=True,
            memory=_KT_0_3_2,
            launch=f"{_CHAT} --optimize_config_path {{rules}} --cpu_infer {{threads}}",
        ),
        Engine(
            "llama.cpp",
            "llama.cpp: the file's blocks on every device",
            measured=False,
            uses_rules=False,
            launch="llama-server -m {gguf} --threads {threads}",
        ),
        Engine(
            "sglang-kt",
            "kt-kernel in sglang: flags, equal GPUs",
            measured=False,
            uses_rules=False,
            splits_layers=False,
            launch="python -m sglang.launch_server --model {model} --kt-cpuinfer {threads}",
        ),
    )
}


def engine(name: str) -> Engine:
    """The engine of a name, or the error that lists them."""
    if name not in ENGINES:
        raise AutoplaceError(f"expected an engine but got {name!r}{did_you_mean(name, ENGINES)}")
    return ENGINES[name]
