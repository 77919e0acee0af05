"""Dequantisation in C++ against numpy's, bit by bit."""

import numpy as np
import pytest

from autoplace import native
from autoplace.errors import AutoplaceError
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import BLOCKS, GGMLType
from autoplace.weights.quantize import random_blocks

T = GGMLType


@pytest.mark.parametrize("ggml_type", list(BLOCKS), ids=lambda t: t.name)
@pytest.mark.parametrize("n_blocks", [1, 9, 700])
def test_dequantised_floats_are_the_same_bits_as_numpys(
    on_path: native.Kernels, ggml_type: GGMLType, n_blocks: int
) -> None:
    blocks = random_blocks(ggml_type, n_blocks, std=1.0, rng=np.random.default_rng(n_blocks))
    out = np.full(n_blocks * BLOCKS[ggml_type][0], np.nan, np.float32)
    on_path.dequantize(blocks.ctypes.data, ggml_type, out.size, out.ctypes.data)
    np.testing.assert_array_equal(
        out.view(np.uint32), dequantize(blocks, ggml_type).view(np.uint32)
    )


@pytest.mark.parametrize("ggml_type", list(BLOCKS), ids=lambda t: t.name)
def test_blocks_of_any_bits_dequantise_as_numpys(
    on_path: native.Kernels, ggml_type: GGMLType
) -> None:
    """Scales may be infinite, denormal or NaN there; NaNs need not have the same payload."""
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, 512 * BLOCKS[ggml_type][1], dtype=np.uint8)
    out = np.empty(512 * BLOCKS[ggml_type][0], np.float32)
    on_path.dequantize(blocks.ctypes.data, ggml_type, out.size, out.ctypes.data)
    with np.errstate(all="ignore"):
        expected = dequantize(blocks, ggml_type)
    np.testing.assert_array_equal(out, expected)


def test_bfloat16_is_the_float_rounded_to_even(on_path: native.Kernels) -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.0e38, 0.0, np.nan], np.float32)
    out = np.empty(6, np.uint16)
    on_path.dequantize(values.ctypes.data, T.F32, 6, out.ctypes.data, T.BF16)
    assert out[:5].tolist() == [0x3F80, 0x3F80, 0x3F82, 0xFF62, 0]
    assert np.isnan((out[5:].astype(np.uint32) << 16).view(np.float32)[0])


def test_half_a_block_is_refused(kernels: native.Kernels) -> None:
    out = np.empty(100, np.float32)
    with pytest.raises(AutoplaceError, match="100 weights of Q4_K"):
        kernels.dequantize(out.ctypes.data, T.Q4_K, 100, out.ctypes.data)
