"""Bytes of llama.cpp's compute buffer on each device, by its graph and its allocator."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from autoplace.architectures.geometry import Geometry, Gqa
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.export.llama_cpp.arena import buffer_bytes
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.graph import GraphBuilder, LayerAt, Shape
from autoplace.export.llama_cpp.layout import HOST
from autoplace.placement.settings import is_quantised

_PAD = 256
_PIPELINE_COPIES = 4
"""Of what each split reads, where llama.cpp runs several GPUs as a pipeline (ggml-backend.cpp)."""
_OFFLOADS_FROM = 32
"""Tokens of a micro-batch from which CUDA computes with weights that lie on the host."""


def compute_bytes(
    spec: ModelSpec,
    args: LlamaCppArgs,
    devices: Mapping[str, str],
    of_layers: Sequence[str],
    context: int,
    *,
    absorbed: bool,
) -> dict[str, int]:
    """Device → bytes. `devices`: of each tensor. `of_layers`: of each layer and of the output.
    `context`: tokens of the cache, before they are padded."""
    tokens = min(args.ubatch, context)
    cells = -(-context // _PAD) * _PAD
    attention = spec.geometry.attention
    window = attention.sliding_window if isinstance(attention, Gqa) else 0
    window_cells = min(cells, -(-(window + tokens) // _PAD) * _PAD)
    flash = args.flash_attn != "off"
    rotations = _rotations(spec.geometry, args, absorbed=absorbed)
    shape = Shape(spec.geometry, tokens, cells, window_cells, flash, absorbed, *rotations)
    offloads = tokens >= _OFFLOADS_FROM and "--no-op-offload" not in args.extra
    layers = _shortened(_layers(spec, args, devices, of_layers, offloads=offloads))
    copies = _PIPELINE_COPIES if _is_pipelined(spec, args, of_layers) else 1
    return dict(_buffers(shape, tuple(layers), of_layers[-1], copies))


def _is_pipelined(spec: ModelSpec, args: LlamaCppArgs, of_layers: Sequence[str]) -> bool:
    """Several CUDA devices hold all layers, and no tensor is overridden (llama-context.cpp)."""
    return (
        len(set(of_layers)) > 1
        and all(device.startswith("cuda") for device in of_layers)
        and args.split_mode == "layer"
        and args.kv_offload
        and not args.overrides
    )


def _rotations(geometry: Geometry, args: LlamaCppArgs, *, absorbed: bool) -> tuple[int, int]:
    """Widths of the matrices that turn keys and values for a quantised cache: for keys the
    largest power of two from 64 on that divides a head, for values 64 (llama-kv-cache.cpp)."""
    attention = geometry.attention
    if isinstance(attention, Gqa):
        key = value = attention.head_dim
    else:
        nope = attention.kv_lora_rank if absorbed else attention.qk_nope_dim
        key, value = nope + attention.qk_rope_dim, 0 if absorbed else attention.v_dim
    turns_keys = is_quantised(args.cache_type_k) and key % 64 == 0
    turns_values = is_quantised(args.cache_type_v) and value and value % 64 == 0
    return (key & -key if turns_keys else 0), (64 if turns_values else 0)


@lru_cache(maxsize=4096)
def _buffers(
    shape: Shape, layers: tuple[LayerAt, ...], output: str, copies: int
) -> tuple[tuple[str, int], ...]:
    builder = GraphBuilder(shape)
    builder.build(list(layers), output)
    return tuple(buffer_bytes(builder.leaves, builder.nodes, num_copies=copies).items())


def _layers(
    spec: ModelSpec,
    args: LlamaCppArgs,
    devices: Mapping[str, str],
    of_layers: Sequence[str],
    *,
    offloads: bool,
) -> list[LayerAt]:
    moe_layers, attention = set(spec.moe_layers), spec.geometry.attention
    found = []
    parts = _parts(spec)
    for layer in range(spec.geometry.num_layers):
        device = of_layers[layer]
        where = {role: devices[name] for role, name in parts[layer].items()}
        experts = where.get(Role.EXPERTS, device)
        weights: tuple[int, ...] = ()
        if experts == HOST and device.startswith("cuda") and offloads and layer in moe_layers:
            experts, weights = device, _expert_bytes(spec, layer)
        found.append(
            LayerAt(
                cache=device if args.kv_offload else HOST,
                tail=device if device != HOST else of_layers[layer + 1],
                sliding=isinstance(attention, Gqa) and attention.is_sliding(layer),
                device=device,
                is_moe=layer in moe_layers,
                experts=experts,
                weights=weights,
                shared=where.get(Role.SHARED_LINEAR, where.get(Role.DENSE_LINEAR, device)),
                attention=where.get(Role.ATTENTION_LINEAR, device),
            )
        )
    return found


def _parts(spec: ModelSpec) -> list[dict[Role, str]]:
    """Layer → role → one of its tensors."""
    parts: list[dict[Role, str]] = [{} for _ in range(spec.geometry.num_layers)]
    for module in spec.modules:
        if module.layer is not None and module.tensors:
            parts[module.layer].setdefault(module.role, module.tensors[0])
    return parts


def _expert_bytes(spec: ModelSpec, layer: int) -> tuple[int, ...]:
    """Bytes of gate, up and down."""
    (experts,) = spec.of_role(Role.EXPERTS, layer)
    infos = [info for info in spec.tensor_infos(experts) if not info.name.endswith(".bias")]
    sizes = tuple(info.n_bytes for info in infos)
    return sizes if len(sizes) == 3 else (sum(sizes) // 3,) * 3


def _shortened(layers: Sequence[LayerAt]) -> list[LayerAt]:
    """Without most of equal pairs in a row: from the third on they find the same free blocks."""
    kept: list[LayerAt] = []
    index = 0
    while index < len(layers):
        pair = list(layers[index : index + 2])
        if len(pair) == 2 and all(kept[at - 2 : at or None] == pair for at in (0, -2)):
            index += 2
            continue
        kept.append(layers[index])
        index += 1
    return kept
