"""The Triton experts against a loop in float64: few tokens, many, and experts nobody chose."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from autoplace.kernels.triton import products
from autoplace.kernels.triton.routing import max_blocks, route
from tests.kernels.triton.weights import FORMS, Form, Known, known_weights


def expected_sum(
    x: Tensor, ids: Tensor, weights: Tensor, gate: Known, up: Known, down: Known
) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, chosen in enumerate(ids.tolist()):
        for slot, expert in enumerate(chosen):
            row = x[token].double()
            hidden = functional.silu(gate.values[expert] @ row) * (up.values[expert] @ row)
            hidden = hidden.to(x.dtype).double()
            out[token] += weights[token, slot].double() * (down.values[expert] @ hidden)
    return out


def chosen(tokens: int, each: int, experts: int) -> tuple[Tensor, Tensor]:
    """Distinct experts of every token, and weights."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand(tokens, experts, generator=generator)
    return scores.topk(each).indices, torch.rand(tokens, each, generator=generator)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    ("tokens", "each", "experts", "width", "inner"),
    [(1, 2, 4, 128, 33), (9, 3, 5, 70, 48), (20, 1, 3, 65, 33)],
)
def test_experts_are_the_weighted_sum_of_their_outputs(
    tokens: int, each: int, experts: int, width: int, inner: int, form: Form, device: torch.device
) -> None:
    gate, up = (known_weights(experts, inner, width, form, device, seed=s) for s in (1, 2))
    down = known_weights(experts, width, inner, form, device, seed=3)
    x = torch.randn(tokens, width, generator=torch.Generator().manual_seed(4))
    x = x.to(form) if isinstance(form, torch.dtype) else x
    ids, weights = chosen(tokens, each, experts)
    got = products.experts(
        *(x.to(device), ids.to(device), weights.to(device)),
        *(gate.matrices, up.matrices, down.matrices),
    )
    tolerance = 2**-6 if x.dtype is torch.bfloat16 else 2e-5
    expected = expected_sum(x, ids, weights, gate, up, down)
    torch.testing.assert_close(got.cpu().double(), expected, rtol=tolerance, atol=tolerance)


def test_gate_up_and_down_may_differ_in_form(device: torch.device) -> None:
    gate, up, down = (
        known_weights(3, *shape, form, device)
        for shape, form in (((32, 64), 4), ((32, 64), 8), ((64, 32), torch.float32))
    )
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(4))
    ids, weights = chosen(6, 2, 3)
    for rows in (slice(0, 1), slice(0, 6)):
        got = products.experts(
            *(x[rows].to(device), ids[rows].to(device), weights[rows].to(device)),
            *(gate.matrices, up.matrices, down.matrices),
        )
        expected = expected_sum(x[rows], ids[rows], weights[rows], gate, up, down)
        torch.testing.assert_close(got.cpu().double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("block_rows", [2, 16])
@pytest.mark.parametrize("experts", [1, 4, 9])
def test_routing_puts_every_pair_in_one_block_of_its_expert(
    block_rows: int, experts: int, device: torch.device
) -> None:
    ids = torch.randint(experts, (7, 3), generator=torch.Generator().manual_seed(experts))
    routing = route(ids.to(device), experts, block_rows)
    flat, order, starts = ids.flatten(), routing.order.tolist(), routing.starts.tolist()
    seen = []
    for expert, first in zip(
        routing.block_expert.tolist(), routing.block_first.tolist(), strict=True
    ):
        if expert < experts:
            positions = range(first, min(first + block_rows, starts[expert + 1]))
            assert len(positions) > 0
            assert all(flat[order[p]] == expert for p in positions)
            seen += [order[p] for p in positions]
    assert sorted(seen) == list(range(21))


def test_the_number_of_blocks_does_not_depend_on_the_ids(device: torch.device) -> None:
    """Else a CUDA graph could not hold the launch."""
    spread, one = torch.arange(12).view(6, 2), torch.zeros(6, 2, dtype=torch.int64)
    counts = {route(ids.to(device), 12, 4).num_blocks for ids in (spread, one)}
    assert counts == {max_blocks(12, 12, 4)} == {15}


def test_ids_of_another_type_are_refused(device: torch.device) -> None:
    gate = known_weights(2, 32, 64, 4, device).matrices
    ids = torch.zeros(1, 2, dtype=torch.int32, device=device)
    x, weights = torch.zeros(1, 64, device=device), torch.zeros(1, 2, device=device)
    with pytest.raises(ValueError, match=r"int64 ids .* \[1, A\] for 2 experts but got torch.int"):
        products.experts(x, ids, weights, gate, gate, gate)
