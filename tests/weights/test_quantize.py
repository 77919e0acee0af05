"""Blocks that `synth` makes are well-formed: right scale, centred, and ggml's own rounding."""

import gguf
import numpy as np
import pytest
from gguf.quants import quantize as oracle

from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import BLOCKS, GGMLType
from autoplace.weights.quantize import quantize, random_blocks

PLAIN = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0)


@pytest.mark.parametrize("ggml_type", PLAIN)
def test_weights_round_as_in_gguf_py(ggml_type: GGMLType) -> None:
    weights = np.random.default_rng(0).standard_normal(32 * 4096).astype(np.float32)
    weights[:32] = 0  # a block without a scale
    weights[32:64] = [127.0, 0.5, -0.5, 1.5, -2.5, 0.49999997, *[0] * 26]  # halves
    expected = oracle(weights, gguf.GGMLQuantizationType(ggml_type)).view(np.uint8)
    np.testing.assert_array_equal(quantize(weights, ggml_type), expected)


def test_bf16_keeps_nan_and_infinity() -> None:
    special = np.array([np.nan, np.inf, -np.inf], np.float32)
    back = dequantize(quantize(special, GGMLType.BF16), GGMLType.BF16)
    np.testing.assert_array_equal(back, special)


@pytest.mark.parametrize("ggml_type", GGMLType)
@pytest.mark.parametrize("std", [0.01, 1.0])
def test_random_blocks_have_the_wanted_deviation_and_no_bias(
    ggml_type: GGMLType, std: float
) -> None:
    n_blocks = 400_000 // BLOCKS[ggml_type][0]
    data = random_blocks(ggml_type, n_blocks, std=std, rng=np.random.default_rng(1))
    weights = dequantize(data, ggml_type)
    assert weights.size == n_blocks * BLOCKS[ggml_type][0]
    assert weights.std() == pytest.approx(std, rel=0.02)
    assert abs(weights.mean()) < 0.03 * std


@pytest.mark.parametrize("ggml_type", GGMLType)
def test_the_same_seed_gives_the_same_blocks(ggml_type: GGMLType) -> None:
    first, second, other = (
        random_blocks(ggml_type, 64, std=0.02, rng=np.random.default_rng(seed))
        for seed in (5, 5, 6)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_random_q8_0_blocks_are_the_random_weights_of_f32_rounded() -> None:
    exact, rounded = (
        dequantize(random_blocks(kind, n_blocks, std=1.0, rng=np.random.default_rng(0)), kind)
        for kind, n_blocks in ((GGMLType.F32, 32 * 1000), (GGMLType.Q8_0, 1000))
    )
    # Half a step of the block's scale, at most 5 / 127 wide.
    np.testing.assert_allclose(rounded, exact, atol=0.5 * 5 / 127)
