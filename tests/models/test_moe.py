"""Routing by hand: who is chosen, and with what weight."""

from dataclasses import replace

import pytest
import torch

from autoplace.architectures.geometry import Moe
from autoplace.models.moe import choose_experts

SOFTMAX = Moe(num_experts=4, top_k=2, expert_ffn=1)
SIGMOID = replace(SOFTMAX, gating="sigmoid")
LOGS = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
"""Scores whose softmax is 0.1, 0.2, 0.3, 0.4."""


def _by_expert(scores: torch.Tensor, bias: torch.Tensor | None, moe: Moe) -> dict[int, float]:
    experts, weights = choose_experts(scores, bias, moe)
    return dict(zip(experts[0].tolist(), weights[0].tolist(), strict=True))


def test_softmax_weights_are_probabilities_over_all_experts() -> None:
    assert _by_expert(LOGS, None, SOFTMAX) == pytest.approx({3: 0.4, 2: 0.3})


def test_normalised_weights_add_up_to_the_routed_scaling() -> None:
    moe = replace(SOFTMAX, normalise_top_k=True, routed_scaling=7.0)
    assert _by_expert(LOGS, None, moe) == pytest.approx({3: 4.0, 2: 3.0})


def test_a_bias_chooses_but_does_not_weigh() -> None:
    scores = torch.zeros(1, 4)
    bias = torch.tensor([0.0, 1.0, 0.0, 2.0])
    assert _by_expert(scores, bias, SIGMOID) == pytest.approx({3: 0.5, 1: 0.5})


def test_softmax_groups_rank_by_their_best_expert() -> None:
    moe = replace(SOFTMAX, num_groups=2, num_groups_used=1)
    scores = torch.tensor([[0.4, 0.05, 0.3, 0.25]]).log()
    assert _by_expert(scores, None, moe) == pytest.approx({0: 0.4, 1: 0.05})


def test_sigmoid_groups_rank_by_their_best_two_experts() -> None:
    moe = replace(SIGMOID, num_groups=2, num_groups_used=1)
    chosen = torch.tensor([[0.9, 0.1, 0.6, 0.5]])
    assert set(_by_expert(chosen.logit(), None, moe)) == {2, 3}
