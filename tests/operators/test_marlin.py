"""Marlin's format: what re-quantising costs, and that kernel and twin pack the same bytes."""

import pytest
import torch

from autoplace.models.backend import kernels
from autoplace.operators.marlin import MarlinFormat, pack_rows, pack_rows_twin, unpack_rows
from tests.operators.weights import random

SHAPES = [(64, 128), (320, 512), (72, 200)]


def _packed(rows: torch.Tensor, form: MarlinFormat) -> torch.Tensor:
    block = torch.zeros(form.n_bytes, dtype=torch.uint8)
    pack_rows_twin(rows.clone(), 0, block, form)
    return block


@pytest.mark.parametrize("num_bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_weight_is_off_by_at_most_half_a_step_of_its_group(
    shape: tuple[int, int], num_bits: int
) -> None:
    """A step is 2 · max|w| / (2^bits - 1); its rounding to bfloat16 adds 1/256 of it a code."""
    weight = random(*shape)
    form = MarlinFormat(*shape, num_bits)
    error = (unpack_rows(0, shape[0], _packed(weight, form), form) - weight).abs()
    for start in range(0, shape[1], 64):
        group = weight[:, start : start + 64].abs().amax(1, keepdim=True)
        step = 2 * group / (2**num_bits - 1)
        assert (error[:, start : start + 64] <= step * (0.5 + 2 ** (num_bits - 1) / 256)).all()


@pytest.mark.parametrize(("num_bits", "bound"), [(4, 0.11), (8, 0.007)])
def test_the_relative_error_of_normal_weights(num_bits: int, bound: float) -> None:
    """Root mean square error over root mean square: about 10 % at 4 bits, 0.6 % at 8."""
    weight = random(320, 512)
    form = MarlinFormat(320, 512, num_bits)
    error = unpack_rows(0, 320, _packed(weight, form), form) - weight
    assert error.norm() / weight.norm() < bound


@pytest.mark.parametrize("num_bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_and_twin_pack_the_same_weights(shape: tuple[int, int], num_bits: int) -> None:
    if kernels() is None:
        pytest.skip("no compiler")
    weight = random(*shape)
    form = MarlinFormat(*shape, num_bits)
    block = torch.zeros(form.n_bytes, dtype=torch.uint8)
    for start in range(0, shape[0], 32):
        pack_rows(weight[start : start + 32].clone(), start, block, form)
    mine = unpack_rows(0, shape[0], _packed(weight, form), form)
    assert torch.equal(unpack_rows(0, shape[0], block, form), mine)


@pytest.mark.parametrize("num_bits", [4, 8])
def test_rows_from_the_middle_are_the_middle_of_all_rows(num_bits: int) -> None:
    form = MarlinFormat(320, 512, num_bits)
    block = _packed(random(320, 512), form)
    assert torch.equal(unpack_rows(37, 91, block, form), unpack_rows(0, 320, block, form)[37:91])
