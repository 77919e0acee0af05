"""Sorts (token, expert) pairs by expert on the device, in shapes that do not depend on the ids.

T tokens, A experts a token, P = T · A pairs, E experts. Nothing is read back by the host.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Routing:
    """Pairs grouped by expert, each group cut into blocks of `block_rows` positions."""

    order: Tensor
    """[P] int32: the pair at each position, experts ascending, tokens ascending within."""
    starts: Tensor
    """[E + 1] int32: an expert's first position."""
    block_expert: Tensor
    """[B] int32: a block's expert; E for blocks that are not used."""
    block_first: Tensor
    """[B] int32: a block's first position."""

    @property
    def num_blocks(self) -> int:
        return self.block_expert.shape[0]


def max_blocks(num_pairs: int, num_experts: int, block_rows: int) -> int:
    """The most blocks that any routing of this many pairs can need."""
    return num_pairs // block_rows + min(num_pairs, num_experts)


def route(ids: Tensor, num_experts: int, block_rows: int) -> Routing:
    """Group the pairs of ids [T, A] int64. Ids outside [0, E) are undefined behaviour."""
    flat = ids.reshape(-1)
    experts, order = torch.sort(flat, stable=True)
    bounds = torch.arange(num_experts + 1, device=ids.device)
    starts = torch.searchsorted(experts, bounds)  # [E + 1]
    num_blocks = (starts.diff() + block_rows - 1) // block_rows  # [E]
    ends = num_blocks.cumsum(0)
    blocks = torch.arange(max_blocks(len(flat), num_experts, block_rows), device=ids.device)
    expert = torch.searchsorted(ends, blocks, right=True)  # [B]
    known = expert.clamp(max=num_experts - 1)
    nth = blocks - (ends - num_blocks)[known]
    first = starts[known] + nth * block_rows
    int32 = torch.int32
    return Routing(order.to(int32), starts.to(int32), expert.to(int32), first.to(int32))
