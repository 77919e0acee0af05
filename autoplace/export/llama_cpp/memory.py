"""What llama.cpp takes on each device: the file's blocks, the cache, its buffers, CUDA's context.

Sources: llama.cpp b9993, src/llama-kv-cache.cpp and src/llama-kv-cache-iswa.cpp (the cache),
src/llama-context.cpp (`output_reserve`); its graphs in `compute`. CUDA's context is in none of its
own figures (`--fit-print`, the load log): they count its buffers only.
"""

from collections import defaultdict
from collections.abc import Mapping

from autoplace.architectures.geometry import Mla
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.compute import compute_bytes
from autoplace.export.llama_cpp.layout import (
    EMBEDDING,
    HOST,
    TIED_OUTPUT,
    layer_devices,
    seen_devices,
    tensor_devices,
)
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.settings import ALL_KV_TYPES
from autoplace.placement.totals import DeviceMemory
from autoplace.units import GIB

CONTEXT_BYTES = GIB // 2
"""Of CUDA on each GPU that llama.cpp sees, used or not (prediction section 1: 0.4 to 0.7 GB)."""
_PAD = 256
_FLOAT32 = 4
"""The cache's length is padded to this (llama-context.cpp)."""


def plan_llama_cpp(
    spec: ModelSpec, args: LlamaCppArgs, buffers: Mapping[str, str], *, context_tokens: int
) -> MemoryPlan:
    """Bytes by device. `context_tokens` holds where the line has no `-c`; `-c 0` is the model's.

    Host weights are memory-mapped, or copied where llama.cpp repacks them for the CPU: the same
    bytes. Raises `AutoplaceError` for an override to a buffer that is not there.
    """
    context = context_of(spec, args, context_tokens)
    tokens = -(-context // _PAD) * _PAD
    devices = tensor_devices(args, spec, buffers)
    geometry = spec.geometry
    of_layers = layer_devices(
        args, geometry.num_layers + geometry.num_mtp_layers, seen_devices(args, buffers)
    )
    weights: dict[str, int] = defaultdict(int, {HOST: 0})
    for tensor, device in devices.items():
        weights[device] += tensor_bytes(spec, tensor, devices)
    cache: dict[str, int] = defaultdict(int)
    for layer in range(geometry.num_layers + geometry.num_mtp_layers):
        device = of_layers[layer] if args.kv_offload else HOST
        cache[device] += cache_bytes(spec, layer, tokens, args)
    workspace = workspaces(spec, args, devices, of_layers, context)
    for device in seen_devices(args, buffers):
        if device.startswith("cuda"):
            workspace[device] = workspace.get(device, 0) + CONTEXT_BYTES
    return MemoryPlan(
        {
            device: DeviceMemory(weights[device], cache[device], workspace.get(device, 0))
            for device in sorted({*weights, *cache, *workspace})
        },
        includes_context=True,
    )


def context_of(spec: ModelSpec, args: LlamaCppArgs, context_tokens: int) -> int:
    """Tokens of the cache, before they are padded."""
    tokens = context_tokens if args.context is None else args.context
    return tokens or spec.geometry.context_length


def tensor_bytes(spec: ModelSpec, tensor: str, devices: Mapping[str, str]) -> int:
    """Of a key of `tensor_devices`. A tied output is held again where it is on a GPU."""
    if tensor != TIED_OUTPUT:
        return spec.tensors[tensor].n_bytes
    return 0 if devices[tensor] == HOST else spec.tensors[EMBEDDING].n_bytes


def cache_bytes(spec: ModelSpec, layer: int, tokens: int, args: LlamaCppArgs) -> int:
    """One layer's keys and values. Files with a whole kv_b make llama.cpp cache every head (no
    absorption); absorbed, there are keys only. A layer with a sliding window keeps the window and
    a micro-batch. `tokens`: padded."""
    attention = spec.geometry.attention
    if isinstance(attention, Mla):
        heads = spec.geometry.num_heads
        if is_absorbed(spec, layer):
            keys, values = attention.kv_lora_rank + attention.qk_rope_dim, 0
        else:
            keys = heads * (attention.qk_nope_dim + attention.qk_rope_dim)
            values = heads * attention.v_dim
    else:
        keys = values = attention.num_kv_heads * attention.head_dim
        if attention.is_sliding(layer):
            window = -(-(attention.sliding_window + args.ubatch) // _PAD) * _PAD
            tokens = min(tokens, window)
    return tokens * (_row(keys, args.cache_type_k) + _row(values, args.cache_type_v))


def is_absorbed(spec: ModelSpec, layer: int) -> bool:
    """Whether the file has MLA's kv_b as two tensors, for which llama.cpp caches the latent."""
    return any(len(kv_b.tensors) > 1 for kv_b in spec.of_role(Role.KV_B, layer))


def _row(width: int, kv_type: str) -> int:
    n_bytes, num_values = ALL_KV_TYPES[kv_type]
    return width * n_bytes // num_values


def workspaces(
    spec: ModelSpec,
    args: LlamaCppArgs,
    devices: Mapping[str, str],
    of_layers: list[str],
    context: int,
) -> dict[str, int]:
    """Compute buffers, and on the host the logits that are handed out."""
    found = compute_bytes(spec, args, devices, of_layers, context, absorbed=is_absorbed(spec, 0))
    found[HOST] = found.get(HOST, 0) + _FLOAT32 * spec.geometry.vocab * (args.parallel or 1)
    return found
