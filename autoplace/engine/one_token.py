"""Gives decoder layers their halves as one kernel call each, for one token in host memory.

The description holds addresses of the modules' own tensors: nothing is copied. A half of which
something lies on a GPU, or has no form that the kernels know, stays with the modules. Layers that
follow one another on a device and have both halves are one call together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autoplace.architectures.geometry import Geometry, Moe
from autoplace.models.backend import DTYPES, decode_kernels
from autoplace.models.basic import RMSNorm, RouterGate
from autoplace.models.gqa import GqaAttention, Step
from autoplace.models.layer import DecoderLayer
from autoplace.models.mla import MlaAttention
from autoplace.models.moe import Mlp, MoeBlock
from autoplace.models.place import Place, expect, put
from autoplace.native_decode import (
    DecodeKernels,
    FeedForward,
    Gqa,
    Matrix,
    Mla,
    Norm,
    Prepared,
    PreparedLayers,
)
from autoplace.native_decode import Mlp as NativeMlp
from autoplace.native_decode import Router as NativeRouter
from autoplace.operators.matrices import NONE, experts_of, matrix_of


class _MissingError(Exception):
    """A part that the kernels cannot read."""


@dataclass(frozen=True)
class AttentionOfOne:
    """x [1, D] → x + attention(norm(x)) by one call."""

    native: DecodeKernels
    prepared: Prepared
    place: Place
    num_turns: int

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        out = _like(x, self.place)
        turns, position = _turns(step, self.num_turns)
        self.native.attention(
            *(self.prepared, x.data_ptr(), DTYPES[x.dtype]),
            *(position, turns, out.data_ptr()),
        )
        return out


@dataclass(frozen=True)
class FeedForwardOfOne:
    """x [1, D] → x + feed_forward(norm(x)) by one call."""

    native: DecodeKernels
    prepared: Prepared
    place: Place

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        out = _like(x, self.place)
        self.native.feed_forward(self.prepared, x.data_ptr(), DTYPES[x.dtype], out.data_ptr())
        return out


@dataclass(frozen=True)
class LayersOfOne:
    """x [1, D] → x after several layers of one place, by one call."""

    native: DecodeKernels
    prepared: PreparedLayers
    place: Place
    num_turns: int

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        out = _like(x, self.place)
        turns, position = _turns(step, self.num_turns)
        self.native.layers(
            *(self.prepared, x.data_ptr(), DTYPES[x.dtype]),
            *(position, turns, out.data_ptr()),
        )
        return out


Stretch = tuple[Callable[[Tensor, Step], Tensor], Place]


def stretches(layers: Sequence[nn.Module], places: Sequence[Place]) -> list[Stretch]:
    """The layers in order, those that can be together as one; for one token."""
    return list(_stretches(layers, places))


def _stretches(layers: Sequence[nn.Module], places: Sequence[Place]) -> Iterator[Stretch]:
    together: list[tuple[AttentionOfOne, FeedForwardOfOne]] = []
    for layer, place in zip(layers, places, strict=True):
        halves = _both_halves(layer)
        if together and (halves is None or together[-1][0].place is not place):
            yield _joined(together)
            together = []
        if halves is None:
            yield layer, place
        else:
            together.append(halves)
    if together:
        yield _joined(together)


def _both_halves(layer: nn.Module) -> tuple[AttentionOfOne, FeedForwardOfOne] | None:
    assert isinstance(layer, DecoderLayer)
    attention, other = layer.attention_of_one, layer.feed_forward_of_one
    if isinstance(attention, AttentionOfOne) and isinstance(other, FeedForwardOfOne):
        return attention, other
    return None


def _joined(halves: Sequence[tuple[AttentionOfOne, FeedForwardOfOne]]) -> Stretch:
    first = halves[0][0]
    prepared = PreparedLayers.of([(one.prepared, other.prepared) for one, other in halves])
    return LayersOfOne(first.native, prepared, first.place, first.num_turns), first.place


def _like(x: Tensor, place: Place) -> Tensor:
    expect(x, place)
    return put(torch.empty_like(x), place)


def _turns(step: Step, num_turns: int) -> tuple[int, int]:
    """The address of the rotation, and the position."""
    assert isinstance(step.start, int)
    assert step.turns.numel() == num_turns, step.turns.shape
    return step.turns.data_ptr(), step.start


def use_kernels_for_one_token(layer: nn.Module, geometry: Geometry, place: Place) -> None:
    """Set a layer's halves where all of their parts are in host memory."""
    native = decode_kernels()
    assert isinstance(layer, DecoderLayer)
    if native is None or not place.runs_on_host:
        return
    if (attention := _prepared(lambda: _attention(layer))) is not None:
        num_turns = geometry.rope.dim // 2
        layer.attention_of_one = AttentionOfOne(native, attention, place, num_turns)
    if (other := _prepared(lambda: _feed_forward(layer))) is not None:
        layer.feed_forward_of_one = FeedForwardOfOne(native, other, place)


def _prepared(make: Callable[[], Mla | Gqa | FeedForward]) -> Prepared | None:
    try:
        return Prepared.of(make())
    except _MissingError:
        return None


def _attention(layer: DecoderLayer) -> Mla | Gqa:
    module, norm = layer.self_attn, _norm(layer.input_layernorm)
    if isinstance(module, MlaAttention):
        return _mla(module, norm)
    assert isinstance(module, GqaAttention)
    return _gqa(module, norm)


def _feed_forward(layer: DecoderLayer) -> FeedForward:
    module, norm = layer.feed_forward, _norm(layer.post_attention_layernorm)
    if isinstance(module, MoeBlock):
        return _moe(module, norm)
    assert isinstance(module, Mlp)
    return FeedForward(norm=norm, dense=_mlp(module))


def _mla(module: MlaAttention, norm: Norm) -> Mla:
    mla, kv_b = module.mla, module.kv_b_proj
    (cache,) = module.cache
    parts = {"q": NONE, "q_a": NONE, "q_b": NONE, "q_a_norm": Norm()}
    if mla.q_lora_rank is None:
        parts["q"] = _matrix(module.q_proj)
    else:
        parts["q_a"], parts["q_b"] = _matrix(module.q_a_proj), _matrix(module.q_b_proj)
        parts["q_a_norm"] = _norm(module.q_a_layernorm)
    return Mla(
        input_norm=norm,
        kv_a=_matrix(module.kv_a_proj_with_mqa),
        kv_a_norm=_norm(module.kv_a_layernorm),
        o=_matrix(module.o_proj),
        keys=kv_b.keys.data_ptr(),
        values=kv_b.values.data_ptr(),
        kv_b_dtype=DTYPES[kv_b.keys.dtype],
        cache=cache.described(),
        num_heads=module.num_heads,
        lora=mla.kv_lora_rank,
        nope=mla.qk_nope_dim,
        rope=mla.qk_rope_dim,
        v=mla.v_dim,
        interleaved=module.interleaved,
        scale=module.scale,
        **parts,
    )


def _gqa(module: GqaAttention, norm: Norm) -> Gqa:
    keys, values = module.cache
    return Gqa(
        input_norm=norm,
        q_norm=_norm(module.q_norm) if module.qk_norm else Norm(),
        k_norm=_norm(module.k_norm) if module.qk_norm else Norm(),
        q=_matrix(module.q_proj),
        k=_matrix(module.k_proj),
        v=_matrix(module.v_proj),
        o=_matrix(module.o_proj),
        key_cache=keys.described(),
        value_cache=values.described(),
        num_heads=module.num_heads,
        num_kv_heads=module.num_kv_heads,
        head_dim=module.head_dim,
        rope=module.rope_dim,
        interleaved=module.interleaved,
        scale=module.scale,
    )


def _moe(module: MoeBlock, norm: Norm) -> FeedForward:
    experts = experts_of(module.experts)
    if experts is None:
        raise _MissingError
    described = FeedForward(norm=norm, experts=experts, router=_router(module.gate, module.moe))
    if module.moe.shared_ffn:
        gated = module.moe.shared_expert_gate
        shared = module.shared_expert if gated else module.shared_experts
        assert isinstance(shared, Mlp)
        described.shared = _mlp(shared)
        described.shared_gate = _matrix(module.shared_expert_gate) if gated else NONE
    return described


def _router(gate: nn.Module, moe: Moe) -> NativeRouter:
    bias = gate.expert_bias if isinstance(gate, RouterGate) else None
    return NativeRouter(
        weight=_matrix(gate),
        bias=None if bias is None else bias.data_ptr(),
        top_k=moe.top_k,
        num_groups=moe.num_groups,
        num_groups_used=moe.num_groups_used,
        sigmoid=moe.gating == "sigmoid",
        normalise=moe.normalise_top_k,
        scaling=moe.routed_scaling,
    )


def _mlp(module: Mlp) -> NativeMlp:
    parts = [_matrix(part) for part in (module.gate_proj, module.up_proj, module.down_proj)]
    if any(part.bias for part in parts):
        raise _MissingError
    return NativeMlp(*parts)


def _matrix(module: nn.Module) -> Matrix:
    matrix = matrix_of(module)
    if matrix is None:
        raise _MissingError
    return matrix


def _norm(module: nn.Module) -> Norm:
    assert isinstance(module, RMSNorm)
    return module.described()
