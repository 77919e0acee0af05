"""Products by bf16 tiles: shapes that fill no tile, many tokens, unequal experts, and the check.

On a machine with AMX the real tiles run; elsewhere the same code with emulated ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from autoplace import native
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import BLOCKS, GGMLType
from autoplace.weights.quantize import random_blocks

from .test_linear import FLOATS, bound_of, check_linear, random_matrix

T = GGMLType
Floats = NDArray[np.float32]


@pytest.fixture(params=["amx", "amx-emulated"])
def tiles(request: pytest.FixtureRequest) -> native.Kernels:
    name = "emulated" if request.param == "amx-emulated" else "kernels"
    loaded: native.Kernels = request.getfixturevalue(name)
    if loaded.path != "amx":
        pytest.skip("this CPU has no AMX")
    return loaded


@pytest.mark.parametrize("ggml_type", list(BLOCKS), ids=lambda t: t.name)
@pytest.mark.parametrize("num_tokens", [5, 16, 17, 33, 66])
def test_batches_that_fill_no_tile_stay_within_the_bound_of_bf16(
    tiles: native.Kernels, ggml_type: GGMLType, num_tokens: int
) -> None:
    x = np.random.default_rng(num_tokens).standard_normal((num_tokens, 768), np.float32)
    check_linear(tiles, x, random_matrix(ggml_type, 49, 768), ggml_type)


@pytest.mark.parametrize(
    ("num_tokens", "n", "k"), [(600, 40, 1024), (1030, 33, 256), (20, 1100, 512), (6, 65, 4352)]
)
def test_many_tokens_rows_or_columns_are_all_multiplied(
    tiles: native.Kernels, num_tokens: int, n: int, k: int
) -> None:
    """Past 1024 tokens, 256 rows and 512 columns the work falls into pieces."""
    x = np.random.default_rng(n).standard_normal((num_tokens, k), np.float32)
    for ggml_type in (T.Q4_K, T.BF16, T.F16):
        check_linear(tiles, x, random_matrix(ggml_type, n, k), ggml_type)


@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-38, 1e-20, 1e20])
def test_activations_of_any_size_keep_the_bound_of_tiles(
    tiles: native.Kernels, scale: float
) -> None:
    x = np.random.default_rng(1).standard_normal((9, 512), np.float32) * np.float32(scale)
    for ggml_type in (T.Q4_K, T.Q6_K, T.F32):
        check_linear(tiles, x, random_matrix(ggml_type, 8, 512), ggml_type)


@pytest.mark.parametrize("ggml_type", FLOATS, ids=lambda t: t.name)
@pytest.mark.parametrize(("num_tokens", "n", "k"), [(5, 1, 33), (21, 37, 300), (70, 300, 1100)])
def test_bfloat16_activations_lose_nothing(
    on_path: native.Kernels, ggml_type: GGMLType, num_tokens: int, n: int, k: int
) -> None:
    """They are one term of bf16 already; F32 weights keep 16 bits, the others all they have."""
    narrow, x = random_bfloats(num_tokens, k)
    blocks = random_matrix(ggml_type, n, k)
    weights = dequantize(blocks, ggml_type).reshape(n, k).astype(np.float64)
    out = np.zeros((num_tokens, n), np.float32)
    on_path.linear(
        *(narrow.ctypes.data, T.BF16, num_tokens, k, blocks.ctypes.data, ggml_type),
        *(n, out.ctypes.data),
    )
    products = x @ np.abs(weights).T
    lost = 2.0**-16 if ggml_type == T.F32 and on_path.path == "amx" else 0.0
    error = np.abs(out - x @ weights.T)
    assert (error <= (lost + 2 * k * 2.0**-24) * products).all()


def random_bfloats(rows: int, columns: int) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """Positive bf16 numbers from 1/8 to 4, as bits and as float64."""
    bits = np.random.default_rng(3).integers(0x3E00, 0x4080, (rows, columns), np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("num_tokens", [6, 40])
def test_bfloat16_experts_of_bfloat16_activations_keep_float32s_precision(
    on_path: native.Kernels, num_tokens: int
) -> None:
    hidden, width, num_experts = 64, 48, 2
    narrow, x = random_bfloats(num_tokens, hidden)
    blocks = [random_matrix(T.BF16, num_experts * width, hidden, seed) for seed in range(3)]
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    gate, up, down = (
        dequantize(b, T.BF16).astype(np.float64).reshape(num_experts, *shape)
        for b, shape in zip(blocks, shapes, strict=True)
    )
    ids = np.tile(np.arange(num_experts), (num_tokens, 1))
    weights = np.random.default_rng(1).random((num_tokens, num_experts), np.float32)
    out = np.zeros((num_tokens, hidden), np.float32)
    stacks = [native.Weights(b.ctypes.data, T.BF16) for b in blocks]
    on_path.experts(
        *(narrow.ctypes.data, T.BF16, num_tokens, hidden, ids.ctypes.data, weights.ctypes.data),
        num_experts,
        num_experts,
        width,
        stacks[0],
        stacks[1],
        stacks[2],
        out.ctypes.data,
    )
    exact = np.zeros((num_tokens, hidden))
    for e in range(num_experts):
        g = x @ gate[e].T
        exact += weights[:, e : e + 1] * ((g / (1 + np.exp(-g)) * (x @ up[e].T)) @ down[e].T)
    assert np.linalg.norm(out - exact) <= 1e-5 * np.linalg.norm(exact)


def test_tiles_of_a_token_do_not_depend_on_the_other_tokens(tiles: native.Kernels) -> None:
    x = np.random.default_rng(5).standard_normal((40, 512), np.float32)
    blocks = random_matrix(T.Q5_K, 50, 512)
    whole = native.linear_of_arrays(tiles, x, blocks, T.Q5_K, 50)
    part = native.linear_of_arrays(tiles, np.ascontiguousarray(x[7:13]), blocks, T.Q5_K, 50)
    np.testing.assert_array_equal(part, whole[7:13])


def unequal_routing(num_tokens: int) -> tuple[NDArray[np.int64], Floats]:
    """All tokens ask 5 and 6 of eight, every 7th 2, the others 0; nobody 1, 3, 4 and 7."""
    ids = np.zeros((num_tokens, 3), np.int64)
    ids[:] = (5, 0, 6)
    ids[::7, 1] = 2
    return ids, np.random.default_rng(0).random((num_tokens, 3), np.float32)


@pytest.mark.parametrize("types", [(T.Q4_K, T.Q4_K, T.Q5_0), (T.F16, T.Q6_K, T.BF16)])
@pytest.mark.parametrize("num_tokens", [9, 70, 1100])
def test_experts_of_unequal_load_and_none_are_summed(
    tiles: native.Kernels, types: tuple[GGMLType, GGMLType, GGMLType], num_tokens: int
) -> None:
    hidden, width, num_experts = 256, 96, 8
    rng = np.random.default_rng(7)
    count = num_experts * hidden * width
    blocks = [random_blocks(t, count // BLOCKS[t][0], std=0.1, rng=rng) for t in types]
    gate, up, down = (
        dequantize(b, t).astype(np.float64).reshape(num_experts, *shape)
        for b, t, shape in zip(
            blocks, types, ((width, hidden), (width, hidden), (hidden, width)), strict=True
        )
    )
    x = rng.standard_normal((num_tokens, hidden), np.float32)
    ids, weights = unequal_routing(num_tokens)
    out = np.full((num_tokens, hidden), np.nan, np.float32)
    stacks = [native.Weights(b.ctypes.data, t) for b, t in zip(blocks, types, strict=True)]
    results = []
    for num_threads in (1, 3):
        tiles.set_num_threads(num_threads)
        tiles.experts(
            *(x.ctypes.data, T.F32, num_tokens, hidden, ids.ctypes.data, weights.ctypes.data),
            3,
            num_experts,
            width,
            stacks[0],
            stacks[1],
            stacks[2],
            out.ctypes.data,
        )
        results.append(out.copy())
    np.testing.assert_array_equal(results[0], results[1])
    exact = np.zeros((num_tokens, hidden))
    for expert in (0, 2, 5, 6):
        tokens, slots = np.nonzero(ids == expert)
        rows = x[tokens].astype(np.float64)
        g = rows @ gate[expert].T
        h = g / (1 + np.exp(-g)) * (rows @ up[expert].T)
        np.add.at(exact, tokens, weights[tokens, slots, None] * (h @ down[expert].T))
    assert np.linalg.norm(out - exact) <= 8e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("wish", "told"),
    [("wrong", "it multiplied wrongly"), ("refused", "the operating system does not allow it")],
)
def test_tiles_that_cannot_be_trusted_are_not_used(
    emulating_library: Path, emulated: native.Kernels, wish: str, told: str
) -> None:
    code = (
        "import ctypes; from autoplace import native\n"
        f"kernels = native.Kernels(ctypes.CDLL({str(emulating_library)!r}))\n"
        "print('amx' in kernels.paths(), kernels.path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "AUTOPLACE_EMULATED_AMX": wish},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "avx512"]
    assert done.stderr == f"autoplace: this CPU has AMX, but {told}; the avx512 path is used\n"


def test_rounding_to_bf16_keeps_the_norm_within_half_a_percent(tiles: native.Kernels) -> None:
    x = np.random.default_rng(8).standard_normal((64, 2048), np.float32)
    blocks = random_matrix(T.Q4_K, 128, 2048)
    weights = dequantize(blocks, T.Q4_K).reshape(128, 2048)
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    out = native.linear_of_arrays(tiles, x, blocks, T.Q4_K, 128)
    assert np.linalg.norm(out - exact) <= 4e-3 * np.linalg.norm(exact)
    assert bound_of(x, weights, T.Q4_K, "amx").shape == out.shape
