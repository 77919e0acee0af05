"""Multi-head latent attention (DeepSeek): the cache holds one compressed row for all heads.

At decode the key half of kv_b is absorbed into the query and the value half is applied after the
softmax, so that the cache is read as it is. At prefill the cache is expanded into keys and values,
a few heads at a time.
"""

import torch
from torch import Tensor, nn

from autoplace.architectures.geometry import Geometry, Mla
from autoplace.models.attention import attend_many, attend_one
from autoplace.models.backend import for_products
from autoplace.models.basic import KvB
from autoplace.models.gqa import Step
from autoplace.models.kv_cache import CacheRows
from autoplace.models.rotary import mla_softmax_scale, rotate
from autoplace.placement.workspace import expanded_heads


class MlaAttention(nn.Module):
    """The builder sets the submodules: q_proj, or q_a_proj, q_a_layernorm and q_b_proj."""

    q_proj: nn.Module
    q_a_proj: nn.Module
    q_a_layernorm: nn.Module
    q_b_proj: nn.Module
    kv_a_proj_with_mqa: nn.Module
    kv_a_layernorm: nn.Module
    kv_b_proj: KvB
    o_proj: nn.Module

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        assert isinstance(geometry.attention, Mla)
        self.mla = geometry.attention
        self.num_heads = geometry.num_heads
        self.interleaved = geometry.rope.interleaved
        qk_dim = self.mla.qk_nope_dim + self.mla.qk_rope_dim
        self.scale = mla_softmax_scale(geometry.rope, qk_dim)
        self.cache_widths = (self.mla.kv_lora_rank + self.mla.qk_rope_dim,)
        self.cache: tuple[CacheRows, ...] = ()

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q_nope, q_rope = self._queries(x, step)
        (rows,) = self.cache
        rows.write(self._compressed(x, step), step.start)
        latent = rows.read(step.end, x.dtype)  # [L, lora + rope]
        attend = self._absorbed if x.shape[0] == 1 else self._expanded
        out: Tensor = self.o_proj(attend(q_nope, q_rope, latent, step))
        return out

    def _queries(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """[T, H, nope] and the rotated [T, H, rope]."""
        if self.mla.q_lora_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(len(x), self.num_heads, -1)
        nope, rope = torch.split(q, [self.mla.qk_nope_dim, self.mla.qk_rope_dim], -1)
        return nope, rotate(rope, step.turns, interleaved=self.interleaved)

    def _compressed(self, x: Tensor, step: Step) -> Tensor:
        """The cache's rows of these tokens: [T, lora + rope]."""
        latent, rope = torch.split(
            self.kv_a_proj_with_mqa(x), [self.mla.kv_lora_rank, self.mla.qk_rope_dim], -1
        )
        turned = rotate(rope[:, None], step.turns, interleaved=self.interleaved)[:, 0]
        return torch.cat((self.kv_a_layernorm(latent), turned), -1)

    def _absorbed(self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, step: Step) -> Tensor:
        to_keys, to_values = self.kv_b_proj.keys, self.kv_b_proj.values
        absorbed = torch.bmm(q_nope[0, :, None], to_keys)[:, 0]  # [H, lora]
        query = torch.cat((absorbed, q_rope[0]), -1)
        rows = attend_one(query[None], latent[None], latent[None], self.scale, step.mask)[0]
        heads = rows[:, None, : self.mla.kv_lora_rank]  # [H, 1, lora]
        return torch.bmm(heads, to_values.transpose(1, 2)).view(1, -1)

    def _expanded(self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, step: Step) -> Tensor:
        query = torch.cat((q_nope, q_rope), -1).transpose(0, 1)  # [H, T, nope + rope]
        group = expanded_heads(self.mla, latent.shape[0])
        outs = [
            self._expand_and_attend(query, latent, step, slice(first, first + group))
            for first in range(0, self.num_heads, group)
        ]
        return torch.cat(outs).transpose(0, 1).flatten(1)

    def _expand_and_attend(self, query: Tensor, latent: Tensor, step: Step, heads: slice) -> Tensor:
        """Attention of some heads whose keys and values are expanded for the while: [h, T, v]."""
        latent = for_products(latent)
        compressed, rope = torch.split(latent, [self.mla.kv_lora_rank, self.mla.qk_rope_dim], -1)
        to_keys = for_products(self.kv_b_proj.keys[heads])
        to_values = for_products(self.kv_b_proj.values[heads])
        nope = torch.matmul(compressed, to_keys.transpose(1, 2))  # [h, L, nope]
        keys = torch.cat((nope, rope.expand(len(nope), -1, -1)), -1)
        values = torch.matmul(compressed, to_values.transpose(1, 2))  # [h, L, v]
        return attend_many(query[heads], keys, values, step.mask, self.scale)
