"""Loads the modules that no rule replaces."""

import torch
from torch import Tensor, nn

from autoplace.architectures.geometry import Geometry, Mla
from autoplace.architectures.spec import Module, Role
from autoplace.errors import AutoplaceError
from autoplace.models.basic import Container, Embedding, Linear, RMSNorm, RouterGate
from autoplace.models.gqa import GqaAttention
from autoplace.models.layer import DecoderLayer
from autoplace.models.mla import MlaAttention
from autoplace.models.moe import Mlp, MoeBlock
from autoplace.models.source import TensorSource
from autoplace.operators.base import (
    OperatorContext,
    filled,
    filled_matrix,
    load_bias,
    weight_and_bias,
)

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
            return Linear(_kv_b_weight(geometry, context, sources), None, context.place)
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


def _kv_b_weight(geometry: Geometry, context: OperatorContext, sources: Sources) -> Tensor:
    """[H · (nope + v), lora], of one tensor or of `attn_k_b` [H, lora, nope] and `attn_v_b`."""
    if len(sources) == 1:
        return filled(context, sources[0], context.dtype)
    mla = geometry.attention
    assert isinstance(mla, Mla)
    shape = (geometry.num_heads * (mla.qk_nope_dim + mla.v_dim), mla.kv_lora_rank)
    allocator = context.allocator
    weight = allocator.empty(shape, context.dtype, context.place, kind="weights", what=context.path)
    halves = weight.view(geometry.num_heads, -1, mla.kv_lora_rank)
    keys, values = sources
    keys.fill(halves[:, : mla.qk_nope_dim].transpose(1, 2), context.place, allocator)
    values.fill(halves[:, mla.qk_nope_dim :], context.place, allocator)
    return weight
