"""Softmax attention over a cache: one query by two small products, many by torch's fused kernel.

At one token torch's fused CPU kernel is 60 times slower than the two products (bfloat16, 1,024
positions, 16 heads of 576: 11.7 ms against 0.18 ms), since it splits work by query.
"""

import torch
from torch import Tensor
from torch.nn import functional

from autoplace.models.backend import for_products


def attend_one(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None = None
) -> Tensor:
    """Groups G of R heads that share keys: [G, R, d], [G, L, d], [G, L, v] → [G, R, v].

    A mask [1, L] says which of L positions there are, where L is fixed for a CUDA graph.
    """
    scores = torch.bmm(query, keys.transpose(1, 2)).float().mul_(scale)
    if mask is not None:
        scores.masked_fill_(mask.logical_not(), float("-inf"))
    return torch.bmm(scores.softmax(-1).to(values.dtype), values)


def causal_mask(num_tokens: int, end: int, device: torch.device) -> Tensor | None:
    """[T, L]: token t of the last T positions sees positions up to its own; None for one token."""
    if num_tokens == 1:
        return None
    ones = torch.ones(num_tokens, end, dtype=torch.bool, device=device)
    return ones.tril_(end - num_tokens)


def attend_many(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """[H, T, d], [G, L, d], [G, L, v] → [H, T, v] in q's type; H a multiple of G, v at most d."""
    dtype = query.dtype
    query, keys, values = map(for_products, (query, keys, values))
    width = values.shape[-1]
    missing = query.shape[-1] - width
    padded = functional.pad(values, (0, missing)) if missing else values
    out = functional.scaled_dot_product_attention(
        query[None],
        keys[None],
        padded[None],
        attn_mask=mask,
        scale=scale,
        enable_gqa=query.shape[0] != keys.shape[0],
    )
    return out[0, ..., :width].to(dtype)
