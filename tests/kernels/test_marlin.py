"""The packed format against its definition in numpy: layout, scales, codes and products."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autoplace import native
from autoplace.errors import AutoplaceError
from autoplace.weights.ggml import GGMLType

F32 = GGMLType.F32
Floats = NDArray[np.float32]


def pack(kernels: native.Kernels, rows: Floats, num_bits: int, chunk: int = 0) -> NDArray[np.uint8]:
    n, k = rows.shape
    packed = np.full(native.marlin_bytes(n, k, num_bits), 0xAB, np.uint8)
    chunk = chunk or n
    for first in range(0, n, chunk):
        part = np.ascontiguousarray(rows[first : first + chunk])
        kernels.marlin_pack(part.ctypes.data, first, len(part), n, k, num_bits, packed.ctypes.data)
    return packed


def unpack(packed: NDArray[np.uint8], n: int, k: int, num_bits: int) -> Floats:
    """[N', K'] weights, straight from the layout in marlin_format.hpp."""
    wide_n, wide_k = -(-n // 64) * 64, -(-k // 128) * 128
    code_bytes = wide_n * wide_k * num_bits // 8
    scales = (packed[code_bytes:].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    scales = scales.reshape(wide_n // 16, wide_k // 64, 16).transpose(0, 2, 1)
    scales = scales.reshape(wide_n, wide_k // 64).repeat(64, 1)
    if num_bits == 8:
        codes = packed[:code_bytes].view(np.int8).reshape(wide_n // 16, wide_k // 4, 16, 4)
        return np.asarray(codes.transpose(0, 2, 1, 3).reshape(wide_n, wide_k) * scales, np.float32)
    pairs = packed[:code_bytes].reshape(wide_n // 16, wide_k // 8, 16, 4)
    halves = np.stack([pairs & 15, pairs >> 4], 3).astype(np.int32) - 8  # [., ., 16, 2, 4]
    wide = halves.transpose(0, 2, 1, 3, 4).reshape(wide_n, wide_k)
    return np.asarray(wide * scales, np.float32)


def quantise_by_hand(rows: Floats, num_bits: int) -> Floats:
    """[N, K]: GPTQ's symmetric groups of 64, the scale rounded to bf16 first."""
    n, k = rows.shape
    padded = np.zeros((n, -(-k // 64) * 64), np.float32)
    padded[:, :k] = rows
    groups = padded.reshape(n, -1, 64)
    scale = np.float32(2) * np.abs(groups).max(-1, keepdims=True) / np.float32(2**num_bits - 1)
    bits = scale.view(np.uint32)
    scale = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(scale > 0, np.rint(groups * (np.float32(1) / scale)), 0)
    codes = codes.clip(-(2 ** (num_bits - 1)), 2 ** (num_bits - 1) - 1)
    return np.asarray(codes * scale, np.float32).reshape(n, -1)[:, :k]


@pytest.mark.parametrize("num_bits", [4, 8])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (1, 1), (33, 200), (100, 1408)])
def test_packed_rows_are_the_rows_quantised_by_hand(
    kernels: native.Kernels, num_bits: int, n: int, k: int
) -> None:
    rows = np.random.default_rng(n).standard_normal((n, k), np.float32)
    rows[0, :64] = 0
    weights = unpack(pack(kernels, rows, num_bits), n, k, num_bits)
    np.testing.assert_array_equal(weights[:n, :k], quantise_by_hand(rows, num_bits))
    assert not weights[n:].any()
    assert not weights[:, k:].any()


@pytest.mark.parametrize(
    ("n", "k", "num_bits", "n_bytes"),
    [(64, 128, 4, 64 * 128 // 2 + 2 * 64 * 2), (65, 129, 8, 128 * 256 + 4 * 128 * 2)],
)
def test_packed_bytes_are_codes_and_scales_of_the_padded_shape(
    n: int, k: int, num_bits: int, n_bytes: int
) -> None:
    assert native.marlin_bytes(n, k, num_bits) == n_bytes


def test_packing_in_chunks_gives_the_same_bytes(kernels: native.Kernels) -> None:
    rows = np.random.default_rng(0).standard_normal((90, 192), np.float32)
    np.testing.assert_array_equal(pack(kernels, rows, 4), pack(kernels, rows, 4, chunk=32))


def test_a_chunk_that_begins_inside_a_tile_is_refused(kernels: native.Kernels) -> None:
    rows = np.zeros((90, 192), np.float32)
    with pytest.raises(AutoplaceError, match=r"rows \[8, 24\).*multiples of 16"):
        kernels.marlin_pack(rows.ctypes.data, 8, 16, 90, 192, 4, rows.ctypes.data)


def test_five_bits_are_refused() -> None:
    with pytest.raises(AutoplaceError, match="4 or 8 bits but got num_bits=5"):
        native.marlin_bytes(64, 128, 5)


@pytest.mark.parametrize("num_bits", [4, 8])
@pytest.mark.parametrize("num_tokens", [1, 2, 5, 19])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (33, 200), (100, 1408)])
def test_a_packed_linear_stays_within_the_rounding_of_its_activations(
    on_path: native.Kernels, num_bits: int, num_tokens: int, n: int, k: int
) -> None:
    rng = np.random.default_rng(k)
    rows = rng.standard_normal((n, k), np.float32)
    x = rng.standard_normal((num_tokens, k), np.float32)
    packed = pack(on_path, rows, num_bits)
    out = np.full((num_tokens, n), np.nan, np.float32)
    on_path.marlin_linear(
        *(x.ctypes.data, F32, num_tokens, k, packed.ctypes.data, num_bits, n, out.ctypes.data)
    )
    weights = unpack(packed, n, k, num_bits)[:n, :k].astype(np.float64)
    exact = x.astype(np.float64) @ weights.T
    peak = np.abs(x).max(-1, keepdims=True)  # bounds every group's: |Δx| ≤ peak / 254
    bound = peak / 254 * np.abs(weights).sum(-1)[None] + 1e-4
    assert (np.abs(out - exact) <= bound).all()
    assert np.linalg.norm(out - exact) <= 0.012 * np.linalg.norm(exact)
