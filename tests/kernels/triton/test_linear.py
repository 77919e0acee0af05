"""The Triton linear against float64, for one token and for many, on odd shapes."""

import pytest
import torch

from autoplace.kernels.triton import products
from autoplace.kernels.triton.matrices import Matrices
from tests.kernels.triton.weights import FORMS, Form, known_weights

SHAPES = [(1, 64, 128), (1, 100, 333), (3, 17, 70), (5, 65, 130), (40, 80, 1100)]
"""T, out, in."""


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("tokens", "out", "width"), SHAPES)
def test_a_linear_is_the_product_with_the_weights_that_are_packed(
    tokens: int, out: int, width: int, form: Form, device: torch.device
) -> None:
    weight = known_weights(1, out, width, form, device)
    x = torch.randn(tokens, width, generator=torch.Generator().manual_seed(1))
    got = products.linear(x.to(device), weight.matrices).cpu()
    assert got.shape == (tokens, out)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.double(), x.double() @ weight.values[0].T, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("tokens", [1, 17])
@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_bfloat16_activations_lose_only_the_last_rounding(
    tokens: int, form: Form, device: torch.device
) -> None:
    weight = known_weights(1, 40, 640, form, device)
    x = torch.randn(tokens, 640, generator=torch.Generator().manual_seed(1)).bfloat16()
    got = products.linear(x.to(device), weight.matrices).cpu()
    assert got.dtype is torch.bfloat16
    expected = x.double() @ weight.values[0].T
    rounding = 2**-7 if device.type == "cpu" else 2**-8  # Triton's interpreter truncates
    torch.testing.assert_close(got.double(), expected, rtol=rounding, atol=2e-5)


@pytest.mark.parametrize("tokens", [1, 5])
def test_splitting_k_changes_no_more_than_the_order_of_a_sum(
    tokens: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = known_weights(1, 40, 1664, 4, device)
    x = torch.randn(tokens, 1664, generator=torch.Generator().manual_seed(1)).to(device)
    split = products.linear(x, weight.matrices)
    monkeypatch.setattr(products, "_MAX_SPLIT", 1)
    torch.testing.assert_close(products.linear(x, weight.matrices), split, rtol=2e-5, atol=2e-5)
    assert products._split(1, 1664) == 1


@pytest.mark.parametrize(
    ("programs", "in_features", "split"),
    [(1, 2048, 8), (1, 1024, 4), (1, 511, 1), (1, 512, 2), (300, 8192, 2), (512, 8192, 1)],
)
def test_k_is_split_until_there_are_programs_enough_but_not_below_256(
    programs: int, in_features: int, split: int
) -> None:
    assert products._split(programs, in_features) == split


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    weight = known_weights(1, 40, 128, 4, device)
    assert products.linear(torch.empty(0, 128, device=device), weight.matrices).shape == (0, 40)


def test_activations_of_another_width_are_refused_with_what_came(device: torch.device) -> None:
    weight = known_weights(1, 40, 128, 4, device)
    with pytest.raises(ValueError, match=r"\[T, 128\] but got torch.float32 \[2, 64\]"):
        products.linear(torch.zeros(2, 64, device=device), weight.matrices)


def test_a_block_of_the_wrong_size_is_refused() -> None:
    blocks = torch.zeros(1, 100, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"uint8 \[E, 4352\] for 4-bit \[64, 128\]"):
        Matrices.packed(blocks, 64, 128, 4)


def test_weights_that_are_not_contiguous_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[4, 3\] with strides \[1, 4\]"):
        Matrices.plain(torch.zeros(3, 4).T)
