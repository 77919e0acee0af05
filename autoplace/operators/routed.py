"""The routed experts by plain torch, one at a time: the slow twin of every experts kernel."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Expert = Callable[[int, Tensor], Tensor]
"""Index and [t, D] → that expert's output [t, D]."""


def sum_of_experts(x: Tensor, experts: Tensor, weights: Tensor, expert: Expert) -> Tensor:
    """Σ over each token's experts of weight · expert(x), summed in float32, in x's dtype."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for index in sorted(set(experts.flatten().tolist())):
        tokens, slots = (experts == index).nonzero(as_tuple=True)
        part = expert(index, x[tokens]).float() * weights[tokens, slots, None]
        out.index_add_(0, tokens, part)
    return out.to(x.dtype)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """One expert with weights [F, D], [F, D], [D, F]."""
    hidden = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
    return functional.linear(hidden, down)
