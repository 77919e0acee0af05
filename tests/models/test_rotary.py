"""Rotary embedding by its definition."""

from math import cos, sin

import pytest
import torch

from autoplace.architectures.geometry import Rope
from autoplace.models.rotary import inverse_frequencies, rotate, rotations

PLAIN = Rope(theta=10000.0, dim=4, interleaved=True)


def test_frequencies_fall_by_powers_of_theta() -> None:
    assert inverse_frequencies(PLAIN).tolist() == pytest.approx([1.0, 0.01])


def test_neighbours_turn_by_position_times_frequency() -> None:
    turns = rotations(torch.tensor([3]), inverse_frequencies(PLAIN), 1.0)
    x = torch.tensor([[[1.0, 0.0, 0.0, 1.0]]])
    expected = [cos(3), sin(3), -sin(0.03), cos(0.03)]
    assert rotate(x, turns, interleaved=True)[0, 0].tolist() == pytest.approx(expected)


def test_halves_turn_as_neighbours_that_were_moved_apart() -> None:
    turns = rotations(torch.arange(5), inverse_frequencies(PLAIN), 1.0)
    x = torch.randn(5, 2, 4)
    apart = rotate(x[..., [0, 2, 1, 3]], turns, interleaved=False)
    assert torch.allclose(apart[..., [0, 2, 1, 3]], rotate(x, turns, interleaved=True))


def test_yarn_leaves_fast_pairs_and_divides_slow_ones_by_the_factor() -> None:
    plain = Rope(theta=10000.0, dim=64, interleaved=True)
    yarn = Rope(theta=10000.0, dim=64, interleaved=True, yarn_factor=40.0, original_context=4096)
    ratio = inverse_frequencies(plain) / inverse_frequencies(yarn)
    assert ratio[0].item() == pytest.approx(1.0)
    assert ratio[-1].item() == pytest.approx(40.0)
    assert (ratio.diff() >= -1e-4).all()
