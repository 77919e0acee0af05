"""Grouped-query attention: llama, Mixtral and the Qwen families."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from autoplace.architectures.geometry import Geometry, Gqa
from autoplace.models.attention import attend_many, attend_one
from autoplace.models.kv_cache import CacheRows
from autoplace.models.rotary import rotate


class Step(NamedTuple):
    """What all layers on one device share in one forward: T tokens from position `start` on."""

    start: int | Tensor
    """A tensor [1] where only the device knows it: see `CacheRows.write`."""
    end: int
    turns: Tensor
    """[T, 1, rope dim / 2] complex rotations."""
    mask: Tensor | None
    """[T, L] bool; None for one token, unless L is more than there are positions."""


class GqaAttention(nn.Module):
    """The builder sets the submodules; q_norm and k_norm only where the family has them."""

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        assert isinstance(geometry.attention, Gqa)
        self.num_heads = geometry.num_heads
        self.num_kv_heads = geometry.attention.num_kv_heads
        self.head_dim = geometry.attention.head_dim
        self.qk_norm = geometry.attention.qk_norm
        self.rope_dim = geometry.rope.dim
        self.interleaved = geometry.rope.interleaved
        self.scale = self.head_dim**-0.5
        self.cache_widths = (self.num_kv_heads * self.head_dim,) * 2
        self.cache: tuple[CacheRows, ...] = ()

    def forward(self, x: Tensor, step: Step) -> Tensor:
        keys, values = self.cache
        q = self.q_proj(x).view(len(x), self.num_heads, -1)  # [T, H, d]
        k = self.k_proj(x).view(len(x), self.num_kv_heads, -1)  # [T, G, d]
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self._rotate(q, step), self._rotate(k, step)
        keys.write(k.flatten(-2), step.start)
        values.write(self.v_proj(x), step.start)
        heads = self._attend(q, self._read(keys, step, q), self._read(values, step, q), step)
        out: Tensor = self.o_proj(heads.flatten(-2))
        return out

    def _rotate(self, x: Tensor, step: Step) -> Tensor:
        if self.rope_dim == self.head_dim:
            return rotate(x, step.turns, interleaved=self.interleaved)
        turned = rotate(x[..., : self.rope_dim], step.turns, interleaved=self.interleaved)
        return torch.cat((turned, x[..., self.rope_dim :]), -1)

    def _read(self, rows: CacheRows, step: Step, q: Tensor) -> Tensor:
        """[L, G·d] → [G, L, d]."""
        read = rows.read(step.end, q.dtype)
        return read.view(step.end, self.num_kv_heads, -1).transpose(0, 1)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, step: Step) -> Tensor:
        if q.shape[0] == 1:
            grouped = q.view(self.num_kv_heads, -1, self.head_dim)  # [G, R, d]
            rows = attend_one(grouped, keys, values, self.scale, step.mask)
            return rows.flatten(0, 1)[None]
        return attend_many(q.transpose(0, 1), keys, values, step.mask, self.scale).transpose(0, 1)
