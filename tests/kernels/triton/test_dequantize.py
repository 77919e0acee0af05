"""Dequantisation in Triton against numpy's, bit by bit."""

import numpy as np
import pytest
import torch

from autoplace.kernels.triton.dequantize import _LEVELS, BLOCKS, dequantize
from autoplace.weights import blocks as layouts
from autoplace.weights import ggml
from autoplace.weights.dequantize import dequantize as reference
from autoplace.weights.ggml import GGMLType
from autoplace.weights.quantize import random_blocks

TYPES = [GGMLType(number) for number in BLOCKS]


def test_sizes_and_levels_are_those_of_the_weights_package() -> None:
    assert {GGMLType(number): sizes for number, sizes in BLOCKS.items()} == {
        ggml_type: ggml.BLOCKS[ggml_type] for ggml_type in TYPES
    }
    assert _LEVELS == layouts.IQ4_VALUES


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("n_blocks", [1, 37])
def test_dequantised_floats_are_the_same_bits_as_numpys(
    ggml_type: GGMLType, n_blocks: int, device: torch.device
) -> None:
    data = random_blocks(ggml_type, n_blocks, std=1.0, rng=np.random.default_rng(n_blocks))
    out = torch.full((n_blocks * BLOCKS[ggml_type][0],), float("nan"), device=device)
    dequantize(torch.from_numpy(data).to(device), ggml_type, out)
    np.testing.assert_array_equal(
        out.cpu().numpy().view(np.uint32), reference(data, ggml_type).view(np.uint32)
    )


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_blocks_of_any_bits_dequantise_as_numpys(ggml_type: GGMLType, device: torch.device) -> None:
    """Scales may be infinite, denormal or NaN there; NaNs need not have the same payload."""
    data = np.random.default_rng(5).integers(0, 256, 40 * BLOCKS[ggml_type][1], dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = reference(data, ggml_type)
        out = torch.empty(expected.size, device=device)
        dequantize(torch.from_numpy(data).to(device), ggml_type, out)
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7B, 0x80, 0xFF])
@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_blocks_of_one_byte_dequantise_as_numpys(
    ggml_type: GGMLType, byte: int, device: torch.device
) -> None:
    """Scales that are zero, denormal, 61,000, minus denormal and NaN; codes at both ends."""
    data = np.full(3 * BLOCKS[ggml_type][1], byte, np.uint8)
    with np.errstate(all="ignore"):
        expected = reference(data, ggml_type)
        out = torch.empty(expected.size, device=device)
        dequantize(torch.from_numpy(data).to(device), ggml_type, out)
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


def test_bfloat16_is_within_its_last_bit_of_the_float(device: torch.device) -> None:
    data = random_blocks(GGMLType.Q4_K, 3, std=1.0, rng=np.random.default_rng(0))
    out = torch.empty(3, 256, dtype=torch.bfloat16, device=device)
    dequantize(torch.from_numpy(data).to(device), GGMLType.Q4_K, out)
    expected = torch.from_numpy(reference(data, GGMLType.Q4_K)).view(3, 256)
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2**-7, atol=0)


def test_half_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks of 144 B .* got torch.uint8 \[100\]"):
        dequantize(torch.zeros(100, dtype=torch.uint8), GGMLType.Q4_K, torch.empty(256))


def test_a_type_without_a_kernel_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ValueError, match=r"2, 6, 8, .* but got 3"):
        dequantize(torch.zeros(20, dtype=torch.uint8), GGMLType.Q4_1, torch.empty(32))
