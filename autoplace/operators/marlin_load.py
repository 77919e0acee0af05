"""Loads a weight into Marlin's form: from the cache of packed weights, or by quantising it."""

import torch
from torch import Tensor

from autoplace.errors import AutoplaceError
from autoplace.models.place import HOST, Place, move
from autoplace.models.source import TensorSource
from autoplace.operators.base import OperatorContext, Part, stacked_shape
from autoplace.operators.marlin import MarlinWeight, packed_shapes, quantize_rows
from autoplace.operators.packed_cache import PackedCache
from autoplace.placement.workspace import load_transient_bytes


def load_marlin(
    context: OperatorContext, part: Part, shape: tuple[int, ...] | None = None
) -> MarlinWeight:
    """Declare, fill and return a packed weight of one source, or of one source an expert.

    `shape` is [out, in] or [E, out, in]. A weight that was packed before costs a read.
    """
    refuse_unless_gpu(context)
    shape, bits = shape or stacked_shape(part), context.num_bits
    code_shape, scale_shape = packed_shapes(shape, bits)
    empty = context.allocator.empty
    codes = empty(code_shape, torch.uint8, context.place, kind="weights", what=context.path)
    scales = empty(scale_shape, torch.bfloat16, context.place, kind="weights", what=context.path)
    weight = MarlinWeight(codes, scales, bits, shape)
    for expert, source in enumerate(part):
        _load(context, source, weight if len(part) == 1 else weight.of_expert(expert))
    return weight


def _load(context: OperatorContext, source: TensorSource, weight: MarlinWeight) -> None:
    cache = PackedCache.default()
    key = f"marlin-1:{weight.num_bits}:{source.identity}"
    if not _load_cached(cache, key, weight, context, source):
        _quantize(weight, source, context)
        cache.store(key, (_bytes(weight.codes), _bytes(weight.scales)))


def refuse_unless_gpu(context: OperatorContext) -> None:
    if not context.place.is_gpu:
        raise AutoplaceError(
            f"{context.path}: Marlin operators run on GPUs only, but the rules put it on cpu; "
            "there are KLinearTorch, KLinearCPUInfer, KExpertsTorch and KExpertsCPU"
        )
    if context.num_bits not in (4, 8):
        raise AutoplaceError(f"{context.path}: expected num_bits 4 or 8 but got {context.num_bits}")


def _load_cached(
    cache: PackedCache,
    key: str,
    weight: MarlinWeight,
    context: OperatorContext,
    source: TensorSource,
) -> bool:
    """Declares what quantising would, so that the bytes do not depend on the cache's state."""
    what = f"reading packed {source.info.name}"
    with context.allocator.transient(HOST, load_transient_bytes(source.info.shape), what=what):
        return cache.read(key, (_bytes(weight.codes), _bytes(weight.scales)))


def _quantize(weight: MarlinWeight, source: TensorSource, context: OperatorContext) -> None:
    """Fill codes and scales chunk by chunk; padding rows get scale zero."""
    num_experts = weight.codes.shape[0] if weight.codes.ndim == 3 else 1
    codes = weight.codes.view(num_experts, -1, weight.codes.shape[-1])
    scales = weight.scales.view(num_experts, -1, weight.scales.shape[-1])
    out_features = weight.shape[-2]
    codes[:, out_features:] = 0
    scales[:, out_features:] = 0
    for start, chunk in source.chunks(context.allocator):
        parts = quantize_rows(chunk, weight.num_bits)
        for target, part in zip((codes, scales), parts, strict=True):
            _scatter_rows(target, part, start, out_features, context.place)


def _scatter_rows(
    target: Tensor, part: Tensor, start: int, out_features: int, place: Place
) -> None:
    """Rows of the unpadded [E · out] list into the padded [E, out↑64, width]."""
    done = 0
    while done < len(part):
        expert, row = divmod(start + done, out_features)
        n = min(out_features - row, len(part) - done)
        target[expert, row : row + n] = move(part[done : done + n], place)
        done += n


def _bytes(x: Tensor) -> Tensor:
    """The same memory as uint8, 1-D."""
    return x.view(torch.uint8).view(-1)
