"""Loads a weight into Marlin's form. A real GPU quantises it; for an emulated one the host does,
and keeps what it packed in a cache on disk."""

import torch
from torch import Tensor

from autoplace.errors import AutoplaceError
from autoplace.models.place import HOST
from autoplace.models.source import TensorSource
from autoplace.operators.base import OperatorContext, Part, stacked_shape
from autoplace.operators.device_fill import staged
from autoplace.operators.device_pack import pack_there
from autoplace.operators.gpu_kernels import on_real_gpu, require_triton
from autoplace.operators.marlin import MarlinFormat, MarlinWeight, pack_rows
from autoplace.operators.packed_cache import PackedCache
from autoplace.placement.workspace import load_transient_bytes

_VERSION = "marlin-2"
"""Of the format and the quantiser: a change of either is another key in the cache."""


def load_marlin(context: OperatorContext, part: Part, shape: tuple[int, ...]) -> MarlinWeight:
    """Declare, fill and return a weight [out, in], or [E, out, in] of one or of E sources.

    A weight that was packed before costs a read.
    """
    _refuse(context)
    form = MarlinFormat(shape[-2], shape[-1], context.num_bits)
    num_matrices = shape[0] if len(shape) == 3 else 1
    blocks = context.allocator.empty(
        (num_matrices, form.n_bytes),
        torch.uint8,
        context.place,
        kind="weights",
        what=context.path,
    )
    for source, target in zip(part, blocks.view(len(part), -1, form.n_bytes), strict=True):
        _load(context, source, target, form)
    return MarlinWeight(blocks, form)


def experts_marlin(context: OperatorContext, part: Part) -> MarlinWeight:
    """One matrix of every expert."""
    return load_marlin(context, part, stacked_shape(part))


def _refuse(context: OperatorContext) -> None:
    if not context.place.is_gpu:
        raise AutoplaceError(
            f"{context.path}: Marlin operators run on GPUs only, but the rules put it on cpu; "
            "there are KLinearTorch, KLinearCPUInfer, KExpertsTorch and KExpertsCPU"
        )
    if context.num_bits not in (4, 8):
        raise AutoplaceError(f"{context.path}: expected num_bits 4 or 8 but got {context.num_bits}")
    if on_real_gpu(context.place):
        require_triton(f"{context.path}: a Marlin operator")


def _load(
    context: OperatorContext, source: TensorSource, blocks: Tensor, form: MarlinFormat
) -> None:
    """Fill [matrices, bytes]. The declared bytes depend on neither the cache nor who packs."""
    with staged(source, context.place, context.allocator):
        if on_real_gpu(context.place):
            pack_there(source, blocks, form, context.allocator)
            return
        cache = PackedCache.default()
        key = f"{_VERSION}:{form.num_bits}:{source.identity}"
        what = f"reading packed {source.info.name}"
        with context.allocator.transient(HOST, load_transient_bytes(source.info.shape), what=what):
            cached = cache.read(key, blocks.view(-1))
        if not cached:
            _quantize(context, source, blocks, form)
            cache.store(key, blocks.view(-1))


def _quantize(
    context: OperatorContext, source: TensorSource, blocks: Tensor, form: MarlinFormat
) -> None:
    """Pack chunk by chunk on the host, in place."""
    assert context.place.runs_on_host, context.place
    for matrix, first_row, rows in source.chunks(context.allocator):
        if first_row == 0:
            blocks[matrix].zero_()
        pack_rows(rows, first_row, blocks[matrix], form)
