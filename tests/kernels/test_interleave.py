"""Sixteen rows side by side: the same bytes, the same products, on every path."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autoplace import native
from autoplace.errors import AutoplaceError
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import BLOCKS, GGMLType
from tests.kernels.test_linear import FLOATS, bound_of, random_matrix

Blocks = NDArray[np.uint8]
BLOCK_TYPES = [ggml_type for ggml_type in BLOCKS if ggml_type not in FLOATS]


def interleaved(kernels: native.Kernels, blocks: Blocks, ggml_type: GGMLType, n: int) -> Blocks:
    out = np.empty_like(blocks)
    k = blocks.size // BLOCKS[ggml_type][1] * BLOCKS[ggml_type][0] // n
    target = native.Weights(out.ctypes.data, ggml_type, interleaved=True)
    kernels.interleave(blocks.ctypes.data, target, n, k)
    return out


def width_of(ggml_type: GGMLType) -> int:
    """One that ends inside a superblock where the format lets it."""
    return 1408 if BLOCKS[ggml_type][0] == 32 else 768


@pytest.mark.parametrize("ggml_type", BLOCK_TYPES, ids=lambda t: t.name)
def test_interleaving_any_bytes_can_be_undone(kernels: native.Kernels, ggml_type: GGMLType) -> None:
    n, k = 48, width_of(ggml_type)
    n_bytes = n * k // BLOCKS[ggml_type][0] * BLOCKS[ggml_type][1]
    blocks = np.random.default_rng(3).integers(0, 256, n_bytes, np.uint8)
    mixed = interleaved(kernels, blocks, ggml_type, n)
    back = np.empty_like(blocks)
    weights = native.Weights(mixed.ctypes.data, ggml_type, interleaved=True)
    kernels.deinterleave(weights, n, k, back.ctypes.data)
    assert not np.array_equal(mixed, blocks)
    assert np.array_equal(back, blocks)


@pytest.mark.parametrize("ggml_type", BLOCK_TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("num_tokens", [1, 2, 4, 5, 12, 31])
def test_products_of_interleaved_rows_stay_within_the_bound_of_the_format(
    on_path: native.Kernels, ggml_type: GGMLType, num_tokens: int
) -> None:
    n, k = 80, width_of(ggml_type)
    x = np.random.default_rng(num_tokens).standard_normal((num_tokens, k), np.float32)
    blocks = random_matrix(ggml_type, n, k)
    mixed = interleaved(on_path, blocks, ggml_type, n)
    out = np.empty((num_tokens, n), np.float32)
    weights = native.Weights(mixed.ctypes.data, ggml_type, interleaved=True)
    on_path.linear_of(x.ctypes.data, GGMLType.F32, weights, (num_tokens, k, n), out.ctypes.data)
    wide = dequantize(blocks, ggml_type).reshape(n, k)
    error = np.abs(out - x.astype(np.float64) @ wide.astype(np.float64).T)
    path = "avx512" if on_path.path == "amx" else on_path.path  # int8 there too
    assert (error <= bound_of(x, wide, ggml_type, path)).all(), error.max()


def test_rows_that_fill_no_strip_are_refused(kernels: native.Kernels) -> None:
    blocks = random_matrix(GGMLType.Q4_K, 24, 256)
    with pytest.raises(AutoplaceError, match=r"\[24, 256\] \(rows by 16\)"):
        interleaved(kernels, blocks, GGMLType.Q4_K, 24)


@pytest.mark.parametrize(
    ("ggml_type", "n", "pays"),
    [(GGMLType.Q4_K, 32, True), (GGMLType.Q4_K, 8, False), (GGMLType.BF16, 32, False)],
)
def test_interleaving_pays_for_whole_strips_of_blocks(
    kernels: native.Kernels, ggml_type: GGMLType, n: int, pays: bool
) -> None:
    if kernels.path not in ("avx2", "avx512"):
        pytest.skip(f"{kernels.path} reads rows as they lie")
    assert kernels.interleave_pays(ggml_type, n, 512) is pays


@pytest.mark.parametrize("num_tokens", [1, 3, 40])
def test_interleaved_experts_give_what_plain_ones_give(
    on_path: native.Kernels, num_tokens: int
) -> None:
    """Codes and rounded activations are the same: only the order of sums differs."""
    num_experts, hidden, width, per_token = 7, 512, 96, 3
    rng = np.random.default_rng(num_tokens)
    x = rng.standard_normal((num_tokens, hidden), np.float32)
    ids = rng.integers(0, num_experts, (num_tokens, per_token))
    router = rng.random((num_tokens, per_token), np.float32)
    types = (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q5_0)
    rows = (num_experts * width, num_experts * width, num_experts * hidden)
    stacks = [
        random_matrix(t, n, k, seed=i)
        for i, (t, n, k) in enumerate(zip(types, rows, (hidden, hidden, width), strict=True))
    ]
    mixed = [
        interleaved(on_path, stack, t, n) for stack, t, n in zip(stacks, types, rows, strict=True)
    ]

    def outputs(data: list[Blocks], *, by_sixteens: bool) -> NDArray[np.float32]:
        out = np.empty((num_tokens, hidden), np.float32)
        gate, up, down = (
            native.Weights(stack.ctypes.data, t, interleaved=by_sixteens)
            for stack, t in zip(data, types, strict=True)
        )
        on_path.experts(
            x.ctypes.data,
            GGMLType.F32,
            num_tokens,
            hidden,
            ids.ctypes.data,
            router.ctypes.data,
            per_token,
            num_experts,
            width,
            gate,
            up,
            down,
            out.ctypes.data,
        )
        return out

    plain = outputs(stacks, by_sixteens=False)
    close = 0.02 if on_path.path == "amx" else 1e-4  # amx takes plain rows as bf16
    assert np.abs(outputs(mixed, by_sixteens=True) - plain).max() <= close * np.abs(plain).max()
