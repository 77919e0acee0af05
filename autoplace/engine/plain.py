"""Loads the modules that no rule replaces."""

import torch
from torch import Tensor, nn

from autoplace.architectures.geometry import Geometry, Mla
from autoplace.architectures.spec import Module, Role
from autoplace.errors import AutoplaceError
from autoplace.models.basic import Container, Embedding, KvB, Linear, RMSNorm, RouterGate
from autoplace.models.gqa import GqaAttention
from autoplace.models.layer import DecoderLayer
from autoplace.models.mla import MlaAttention
from autoplace.models.moe import Mlp, MoeBlock
from autoplace.models.place import move
from autoplace.models.source import TensorSource
from autoplace.operators.base import (
    OperatorContext,
    filled,
    filled_matrix,
    load_bias,
    weight_and_bias,
)
from autoplace.operators.device_fill import fill_weight, staged

Sources = tuple[TensorSource, ...]

LINEAR_CLASS = "torch.nn.Linear"


def make_plain(
    module: Module, geometry: Geometry, context: OperatorContext, sources: Sources
) -> nn.Module:
    """A module as Hugging Face has it, its weights in the engine's dtype on its place."""
    match module.role:
        case Role.EMBEDDING:
            return Embedding(filled(context, sources[0], context.dtype), context.place)
        case Role.NORM:
            weight = filled(context, sources[0], context.dtype)
            return RMSNorm(weight, geometry.rms_eps, context.place)
        case Role.ROUTER if module.class_name != LINEAR_CLASS:
            return _router(context, sources)
        case Role.KV_B:
            return _kv_b(geometry, context, sources)
        case Role.EXPERTS:
            raise AutoplaceError(
                f"{module.path}: routed experts need a rule that replaces them by "
                "KTransformersExperts; there are KExpertsCPU, KExpertsMarlin, KExpertsTorch"
            )
    if sources:
        return _linear(context, sources)
    return _container(module, geometry)


def _linear(context: OperatorContext, sources: Sources) -> Linear:
    weight, bias = weight_and_bias(sources)
    return Linear(filled_matrix(context, weight), load_bias(context, bias), context.place)


def _router(context: OperatorContext, sources: Sources) -> RouterGate:
    weight = filled(context, sources[0], context.dtype)
    bias = filled(context, sources[1], torch.float32) if len(sources) == 2 else None
    return RouterGate(weight, bias, context.place)


def _container(module: Module, geometry: Geometry) -> nn.Module:
    match module.role:
        case Role.ATTENTION:
            mla = isinstance(geometry.attention, Mla)
            return MlaAttention(geometry) if mla else GqaAttention(geometry)
        case Role.MLP if module.is_moe:
            assert geometry.moe is not None
            return MoeBlock(geometry.moe)
        case Role.MLP:
            return Mlp()
    if module.layer is not None and module.path == f"model.layers.{module.layer}":
        return DecoderLayer()
    return Container()


def _kv_b(geometry: Geometry, context: OperatorContext, sources: Sources) -> KvB:
    """kv_b of one tensor [H · (nope + v), lora], or of attn_k_b [H, lora, nope] and attn_v_b."""
    mla = geometry.attention
    assert isinstance(mla, Mla)
    keys, values = (
        context.allocator.empty(
            (geometry.num_heads, width, mla.kv_lora_rank),
            context.dtype,
            context.place,
            kind="weights",
            what=context.path,
        )
        for width in (mla.qk_nope_dim, mla.v_dim)
    )
    if len(sources) == 1:
        with staged(sources[0], context.place, context.allocator):
            _deal_rows(sources[0], keys, values, context)
    else:
        fill_weight(sources[0], keys.transpose(1, 2), context.place, context.allocator)
        fill_weight(sources[1], values, context.place, context.allocator)
    return KvB(keys, values)


def _deal_rows(
    source: TensorSource, keys: Tensor, values: Tensor, context: OperatorContext
) -> None:
    """Each head's rows are first its keys', then its values'."""
    num_keys, num_values = keys.shape[1], values.shape[1]
    for _, start, chunk in source.chunks(context.allocator):
        rows = torch.arange(start, start + len(chunk))
        head, row = rows // (num_keys + num_values), rows % (num_keys + num_values)
        is_key = row < num_keys
        part = move(chunk.to(context.dtype), context.place)
        keys[head[is_key], row[is_key]] = part[is_key]
        values[head[~is_key], row[~is_key] - num_keys] = part[~is_key]
