"""The feed-forward half of a layer: a dense MLP, or routed experts with a shared one beside them.

T tokens, D model width, E experts, K experts per token.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from autoplace.architectures.geometry import Moe
from autoplace.models.basic import RouterGate


class Mlp(nn.Module):
    """down(silu(gate(x)) · up(x)): a dense MLP or a shared expert."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class RoutedExperts(nn.Module, ABC):
    """What stands at `experts`: an injected wrapper."""

    @abstractmethod
    def start(self, x: Tensor, experts: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        """Begin with [T, D], indices and weights [T, K]; the result gives the sum [T, D]."""


class MoeBlock(nn.Module):
    """Router, routed experts and, where the family has it, a shared expert.

    Routed experts are started first and finished last: the shared expert's work is queued on its
    GPU in between, so that both run at once where the experts are on the CPU.
    """

    gate: nn.Module
    experts: RoutedExperts
    shared_experts: nn.Module
    shared_expert: nn.Module
    shared_expert_gate: nn.Module

    def __init__(self, moe: Moe) -> None:
        super().__init__()
        self.moe = moe

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).float()
        gate = self.gate
        bias = gate.expert_bias if isinstance(gate, RouterGate) else None
        experts, weights = choose_experts(scores, bias, self.moe)
        finish = self.experts.start(x, experts, weights)
        shared = self._shared(x)
        routed = finish()
        return routed if shared is None else routed + shared

    def _shared(self, x: Tensor) -> Tensor | None:
        if not self.moe.shared_ffn:
            return None
        if not self.moe.shared_expert_gate:
            return cast(Tensor, self.shared_experts(x))
        return cast(Tensor, self.shared_expert(x) * self.shared_expert_gate(x).sigmoid())


def choose_experts(scores: Tensor, bias: Tensor | None, moe: Moe) -> tuple[Tensor, Tensor]:
    """Expert indices [T, K] int64 and their weights [T, K] float32 from router scores [T, E].

    As Hugging Face's DeepseekV2Moe, DeepseekV3TopkRouter, Qwen2Moe, Qwen3Moe and Mixtral: groups
    rank by their best expert with softmax (V2), by their best two with sigmoid (V3); a bias
    takes part in choosing only.
    """
    probabilities = scores.sigmoid() if moe.gating == "sigmoid" else scores.softmax(-1)
    choice = probabilities if bias is None else probabilities + bias
    if moe.num_groups > 1:
        choice = _best_groups_only(choice, moe)
    experts = choice.topk(moe.top_k, dim=-1).indices
    weights = probabilities.gather(-1, experts)
    if moe.normalise_top_k:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return experts, weights * moe.routed_scaling


def _best_groups_only(choice: Tensor, moe: Moe) -> Tensor:
    groups = choice.view(len(choice), moe.num_groups, -1)  # [T, G, E / G]
    rank_of = 2 if moe.gating == "sigmoid" else 1
    rank = groups.topk(rank_of, dim=-1).values.sum(-1)
    kept = rank.topk(moe.num_groups_used, dim=-1).indices
    outside = torch.ones_like(rank, dtype=torch.bool).scatter_(-1, kept, False)
    return groups.masked_fill(outside[..., None], float("-inf")).flatten(-2)
