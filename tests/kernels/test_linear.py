"""The compiled products against float64 with the same dequantised weights, on every CPU path."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autoplace import native
from autoplace.errors import AutoplaceError
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import BLOCKS, GGMLType
from autoplace.weights.quantize import random_blocks

T = GGMLType
FLOATS = (T.F32, T.F16, T.BF16)
MOST_GEMV_TOKENS = 4
Floats = NDArray[np.float32]
Bound = NDArray[np.float64]


def bound_of(x: Floats, weights: Floats, ggml_type: GGMLType, path: str) -> Bound:
    """[T, N]: what rounding may add up to.

    Activations in int8 with d = max|x| / 127 over 32: |Δx| ≤ d / 2, so |Δy| ≤ Σ |w| · d / 2. Sums
    in float32 of K terms: K · 2⁻²⁴ · Σ |w·x| at the very worst; codes stored with an offset of
    up to 128 make the terms that cancel larger than the weights by that much.

    Tiles (amx, 5 tokens and more): x and w in bf16, |Δx| ≤ 2⁻⁸ |x|; of float weights two terms of
    each, |Δx| ≤ 2⁻¹⁶ |x|, without the product of both second ones; denormals of bf16 are zero.
    """
    t, k = x.shape
    groups = np.zeros((t, -(-k // 32) * 32))
    groups[:, :k] = np.abs(x)
    peaks = groups.reshape(t, -1, 32).max(-1).repeat(32, -1)[:, :k]
    magnitude = np.abs(weights.astype(np.float64))
    products: Bound = np.abs(x).astype(np.float64) @ magnitude.T
    summing: Bound = k * 2.0**-24 * products
    if path == "amx" and t > MOST_GEMV_TOKENS:
        lost = 3 * 2.0**-16 if ggml_type in FLOATS else 2.0**-7 + 2.0**-16
        tiny = k * 2.0**-126 * max(1.0, float(np.abs(x).max()), float(magnitude.max()))
        tiles: Bound = lost * products + 3 * summing + tiny + 1e-30
        return tiles
    if ggml_type in FLOATS or path == "scalar":
        return summing + 1e-30
    rows_peak = np.broadcast_to(magnitude.max(-1, keepdims=True), magnitude.shape)
    offsets: Bound = 2.0**-20 * peaks @ rows_peak.T
    rounding: Bound = peaks / 254 @ magnitude.T * 1.001
    return rounding + summing + offsets + 1e-30


def random_matrix(ggml_type: GGMLType, n: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return random_blocks(ggml_type, n * k // BLOCKS[ggml_type][0], std=0.05, rng=rng)


def check_linear(
    kernels: native.Kernels, x: Floats, blocks: NDArray[np.uint8], ggml_type: T
) -> None:
    k = x.shape[1]
    weights = dequantize(blocks, ggml_type).reshape(-1, k)
    out = native.linear_of_arrays(kernels, x, blocks, ggml_type, weights.shape[0])
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    error = np.abs(out - exact)
    assert (error <= bound_of(x, weights, ggml_type, kernels.path)).all(), error.max()


@pytest.mark.parametrize("ggml_type", list(BLOCKS), ids=lambda t: t.name)
@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 13, 35])
def test_a_linear_stays_within_the_bound_of_its_format(
    on_path: native.Kernels, ggml_type: GGMLType, num_tokens: int
) -> None:
    rng = np.random.default_rng(num_tokens)
    for n, k in ((1, 256), (37, 1280)):
        x = rng.standard_normal((num_tokens, k), np.float32)
        check_linear(on_path, x, random_matrix(ggml_type, n, k), ggml_type)


@pytest.mark.parametrize("ggml_type", [t for t, (size, _) in BLOCKS.items() if size == 32])
@pytest.mark.parametrize("k", [32, 96, 1056, 1408])
@pytest.mark.parametrize("num_tokens", [1, 6])
def test_rows_that_end_inside_a_superblock_are_whole(
    on_path: native.Kernels, ggml_type: GGMLType, k: int, num_tokens: int
) -> None:
    x = np.random.default_rng(k).standard_normal((num_tokens, k), np.float32)
    check_linear(on_path, x, random_matrix(ggml_type, 17, k), ggml_type)


@pytest.mark.parametrize("ggml_type", FLOATS)
@pytest.mark.parametrize("k", [1, 7, 33, 1029])
@pytest.mark.parametrize("num_tokens", [1, 2, 11])
def test_float_rows_of_any_length_are_multiplied(
    on_path: native.Kernels, ggml_type: GGMLType, k: int, num_tokens: int
) -> None:
    x = np.random.default_rng(k).standard_normal((num_tokens, k), np.float32)
    check_linear(on_path, x, random_matrix(ggml_type, 19, k), ggml_type)


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1e10])
def test_activations_of_any_size_keep_the_bound(on_path: native.Kernels, scale: float) -> None:
    x = np.random.default_rng(1).standard_normal((2, 512), np.float32) * np.float32(scale)
    check_linear(on_path, x, random_matrix(T.Q4_K, 8, 512), T.Q4_K)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("num_tokens", [1, 8])
def test_a_bad_activation_cannot_hide(on_path: native.Kernels, bad: float, num_tokens: int) -> None:
    x = np.ones((num_tokens, 256), np.float32)
    x[0, 77] = bad
    out = native.linear_of_arrays(on_path, x, random_matrix(T.Q6_K, 4, 256), T.Q6_K, 4)
    assert not np.isfinite(out[0]).any()


@pytest.mark.parametrize("ggml_type", list(BLOCKS), ids=lambda t: t.name)
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_the_largest_codes_do_not_overflow(
    on_path: native.Kernels, ggml_type: GGMLType, num_tokens: int
) -> None:
    if ggml_type in FLOATS:
        return
    blocks = random_matrix(ggml_type, 16, 256)
    quants = blocks.reshape(16, -1)
    width = {T.Q2_K: slice(16, 80), T.Q3_K: slice(0, 96), T.Q6_K: slice(0, 192)}
    where = width.get(ggml_type, slice(quants.shape[1] - 16, None))
    for value in (0x00, 0x80, 0xFF):
        quants[:, where] = value
        for sign in (1, -1):
            check_linear(on_path, np.full((num_tokens, 256), sign, np.float32), blocks, ggml_type)


def test_a_linear_in_bfloat16_reads_and_writes_bfloat16(on_path: native.Kernels) -> None:
    x = np.random.default_rng(3).standard_normal((7, 256), np.float32)
    narrow = (x.view(np.uint32) >> 16).astype(np.uint16)
    wide = (narrow.astype(np.uint32) << 16).view(np.float32)
    blocks = random_matrix(T.Q8_0, 21, 256)
    for num_tokens in (1, 7):
        expected = native.linear_of_arrays(on_path, wide[:num_tokens], blocks, T.Q8_0, 21)
        out = np.zeros((num_tokens, 21), np.uint16)
        on_path.linear(
            *(narrow.ctypes.data, T.BF16, num_tokens, 256, blocks.ctypes.data, T.Q8_0),
            *(21, out.ctypes.data, T.BF16),
        )
        back = (out.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(back, expected, rtol=2**-7, atol=1e-5)


def test_a_row_of_broken_blocks_is_refused_with_what_came(kernels: native.Kernels) -> None:
    x = np.zeros((1, 100), np.float32)
    with pytest.raises(AutoplaceError, match="Q4_K with in_features=100"):
        native.linear_of_arrays(kernels, x, np.zeros(64, np.uint8), T.Q4_K, 4)
    with pytest.raises(AutoplaceError, match=r"impossible shape: .* x \[1, 100\] F32"):
        kernels.linear(x.ctypes.data, T.F32, 1, 100, x.ctypes.data, T.Q4_K, 4, x.ctypes.data)
    with pytest.raises(AutoplaceError, match=r"unknown type: .*type 99"):
        kernels.linear(x.ctypes.data, T.F32, 1, 100, x.ctypes.data, 99, 4, x.ctypes.data)


def test_strided_activations_are_refused_with_their_strides(kernels: native.Kernels) -> None:
    x = np.zeros((2, 512), np.float32)[:, ::2]
    with pytest.raises(AutoplaceError, match=r"strides \(2048, 8\)"):
        native.linear_of_arrays(kernels, x, random_matrix(T.Q4_K, 4, 256), T.Q4_K, 4)
