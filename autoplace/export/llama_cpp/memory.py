"""What llama.cpp takes on each device: the file's blocks, the cache, its buffers."""

from collections import defaultdict
from collections.abc import Sequence

from autoplace.architectures.geometry import Geometry, Gqa, Mla
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.export.llama_cpp.layout import HOST, Arguments, layer_devices, tensor_devices
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.settings import KV_TYPES, RunSettings
from autoplace.placement.totals import DeviceMemory
from autoplace.units import GIB
from autoplace.workload import Workload

CONTEXT_BYTES = GIB // 2
"""Of CUDA on each GPU that is used (prediction section 1: 0.4 to 0.7 GB)."""
UBATCH = 512
"""Tokens of a physical batch, llama.cpp's default."""
_PAD = 256
"""The cache's length is padded to this (llama-context.cpp)."""


def plan_llama_cpp(
    spec: ModelSpec,
    arguments: Arguments,
    gpus: Sequence[str],
    *,
    workload: Workload,
    settings: RunSettings,
) -> MemoryPlan:
    """Bytes by device. Host weights are memory-mapped."""
    weights: dict[str, int] = defaultdict(int, {HOST: 0})
    devices = tensor_devices(arguments, spec, gpus)
    for tensor, device in devices.items():
        weights[device] += spec.tensors[tensor].n_bytes
    if spec.geometry.tied_embeddings:
        weights[HOST] += spec.tensors["token_embd.weight"].n_bytes
    of_layers = layer_devices(arguments, spec.geometry.num_layers, gpus)
    cache: dict[str, int] = defaultdict(int)
    for layer, device in enumerate(of_layers[:-1]):
        cache[device] += cache_bytes(spec, layer, workload, settings.kv_type)
    names = sorted({*weights, *cache})
    return MemoryPlan(
        {
            device: DeviceMemory(
                weights=weights[device],
                kv_cache=cache[device],
                workspace=_buffers(spec.geometry, device, of_layers[-1], workload),
            )
            for device in names
        },
        includes_context=True,
    )


def cache_bytes(spec: ModelSpec, layer: int, workload: Workload, kv_type: str) -> int:
    """One layer's cache. Files with a whole kv_b make llama.cpp cache every head (no absorption).

    A layer with a sliding window keeps the window and a batch.
    """
    attention = spec.geometry.attention
    tokens = -(-workload.context_tokens // _PAD) * _PAD
    n_bytes, num_values = KV_TYPES[kv_type]
    if isinstance(attention, Mla):
        width = attention.kv_lora_rank + attention.qk_rope_dim
        (kv_b,) = spec.of_role(Role.KV_B, layer)
        if len(kv_b.tensors) == 1:
            head = attention.qk_nope_dim + attention.qk_rope_dim + attention.v_dim
            width = spec.geometry.num_heads * head
    else:
        width = 2 * attention.num_kv_heads * attention.head_dim
        if attention.is_sliding(layer):
            window = -(-(attention.sliding_window + UBATCH) // _PAD) * _PAD
            tokens = min(tokens, window)
    return tokens * width * n_bytes // num_values


def _buffers(geometry: Geometry, device: str, output: str, workload: Workload) -> int:
    """An estimate of the compute buffer: a batch's activations, scores without flash attention's
    saving for one head group, and on the output's device the logits, all in float32."""
    tokens = min(UBATCH, workload.context_tokens)
    heads = geometry.attention.num_kv_heads if isinstance(geometry.attention, Gqa) else 1
    activations = 4 * tokens * 8 * geometry.hidden
    scores = 4 * tokens * workload.context_tokens * heads
    logits = 4 * tokens * geometry.vocab if device == output else 0
    context = CONTEXT_BYTES if device != HOST else 0
    return context + activations + scores + logits
