"""Attention of one token, latent and grouped, against float64 over the rows of the cache."""

from collections.abc import Callable

import numpy as np
import pytest

from autoplace import native
from autoplace.errors import AutoplaceError
from autoplace.native_decode import DecodeKernels, Prepared
from autoplace.weights.ggml import GGMLType
from tests.kernels.one_token import (
    BF16,
    F32,
    KV_BOUNDS,
    Arrays,
    Exact,
    GqaLayer,
    MlaLayer,
    from_bf16,
    to_bf16,
    turns_of,
)

T = GGMLType
Layer = MlaLayer | GqaLayer
POSITIONS = 150
"""Three runs of 64 positions, the last one short."""


def mla_layer(
    kv_type: GGMLType = T.F32,
    *,
    dtype: GGMLType = F32,
    interleaved: bool = True,
    low: int = 0,
    odd: bool = False,
) -> MlaLayer:
    heads, lora, nope, rope, v = (11, 43, 19, 6, 21) if odd else (16, 96, 32, 32, 48)
    return MlaLayer(
        *(Arrays(seed=1, dtype=dtype), kv_type, 75 if odd else 128, heads, low, lora, nope),
        *(rope, v, POSITIONS, interleaved),
    )


def gqa_layer(
    kv_type: GGMLType = T.F32,
    *,
    dtype: GGMLType = F32,
    odd: bool = False,
    interleaved: bool = False,
    qk_norm: bool = True,
    bias: bool = True,
) -> GqaLayer:
    heads, kv_heads, head_dim, rope = (15, 3, 21, 10) if odd else (12, 2, 48, 48)
    return GqaLayer(
        *(Arrays(seed=2, dtype=dtype), kv_type, 75 if odd else 96, heads, kv_heads, head_dim),
        *(rope, POSITIONS, interleaved, qk_norm, bias),
    )


def rope_angles(layer: Layer, position: int) -> Exact:
    angles: Exact = position / 10.0 ** np.linspace(0, 3, layer.rope // 2)
    return angles


def decode(kernels: native.Kernels, layer: Layer, x: Exact, position: int) -> Exact:
    turns = turns_of(rope_angles(layer, position))
    single = x.astype(np.float32)
    out = np.full(layer.width, np.nan, np.float32)
    DecodeKernels(kernels).attention(
        *(Prepared.of(layer.struct), single.ctypes.data, F32),
        *(position, turns.ctypes.data, out.ctypes.data),
    )
    exact: Exact = out.astype(np.float64)
    return exact


def fill(kernels: native.Kernels, layer: Layer, num_positions: int) -> list[Exact]:
    """Decode so many random tokens, one after the other."""
    rng = np.random.default_rng(3)
    tokens = rng.standard_normal((num_positions, layer.width)).astype(np.float32)
    return [decode(kernels, layer, x.astype(np.float64), i) for i, x in enumerate(tokens)]


def last_token(num_positions: int, width: int) -> Exact:
    rng = np.random.default_rng(3)
    tokens = rng.standard_normal((num_positions, width)).astype(np.float32)
    exact: Exact = tokens[-1].astype(np.float64)
    return exact


LAYERS: dict[str, Callable[[GGMLType], Layer]] = {
    "latent": lambda kv: mla_layer(kv),
    "latent-low-halves": lambda kv: mla_layer(kv, low=40, interleaved=False),
    "latent-bf16": lambda kv: mla_layer(kv, dtype=BF16),
    "grouped": lambda kv: gqa_layer(kv),
    "grouped-plain-interleaved": lambda kv: gqa_layer(
        kv, qk_norm=False, bias=False, interleaved=True
    ),
    "grouped-bf16": lambda kv: gqa_layer(kv, dtype=BF16),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kv_type", KV_BOUNDS)
def test_attention_is_that_of_float64_over_the_rows_of_the_cache(
    on_path: native.Kernels, name: str, kv_type: GGMLType
) -> None:
    layer = LAYERS[name](kv_type)
    for num_positions in (1, 64, POSITIONS):
        out = fill(on_path, layer, num_positions)[-1]
        x, position = last_token(num_positions, layer.width), num_positions - 1
        exact = layer.attend(x, position, rope_angles(layer, position))
        assert np.abs(out - exact).max() <= 2e-5 * np.abs(exact).max()


@pytest.mark.parametrize("kv_type", [T.F32, T.F16, T.BF16])
@pytest.mark.parametrize("make", [mla_layer, gqa_layer])
def test_attention_takes_shapes_that_fill_no_vector(
    on_path: native.Kernels, make: type, kv_type: GGMLType
) -> None:
    layer = make(kv_type, odd=True)
    out = fill(on_path, layer, 70)[-1]
    exact = layer.attend(last_token(70, layer.width), 69, rope_angles(layer, 69))
    assert np.abs(out - exact).max() <= 2e-5 * np.abs(exact).max()


@pytest.mark.parametrize(("kv_type", "bound"), KV_BOUNDS.items())
def test_the_row_that_a_token_leaves_is_its_own_within_the_types_step(
    on_path: native.Kernels, kv_type: GGMLType, bound: float
) -> None:
    latent, grouped = mla_layer(kv_type), gqa_layer(kv_type)
    for layer in (latent, grouped):
        fill(on_path, layer, 5)
    expected = latent.row(last_token(5, latent.width), rope_angles(latent, 4))
    keys, values = grouped.rows(last_token(5, grouped.width), rope_angles(grouped, 4))
    for cache, row in (
        (latent.cache, expected),
        (grouped.key_cache, keys),
        (grouped.value_cache, values),
    ):
        assert np.abs(cache.read(5)[4] - row).max() <= bound * np.abs(row).max()


@pytest.mark.parametrize("make", [mla_layer, gqa_layer])
def test_attention_gives_the_same_bits_with_any_number_of_threads(
    kernels: native.Kernels, make: type
) -> None:
    before, results = kernels.num_threads, []
    for num_threads in (1, 2, 5):
        kernels.set_num_threads(num_threads)
        results.append(fill(kernels, make(T.F16), POSITIONS)[-1])
    kernels.set_num_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("make", [mla_layer, gqa_layer])
def test_a_bf16_token_comes_back_rounded_and_may_be_overwritten(
    kernels: native.Kernels, make: type
) -> None:
    layer, position = make(), 0
    x = to_bf16(last_token(1, layer.width).astype(np.float32))
    before = from_bf16(x).astype(np.float64)
    turns = turns_of(rope_angles(layer, position))
    DecodeKernels(kernels).attention(
        *(Prepared.of(layer.struct), x.ctypes.data, BF16),
        *(position, turns.ctypes.data, x.ctypes.data),
    )
    expected = layer.attend(before, position, rope_angles(layer, position))
    assert np.abs(from_bf16(x) - expected).max() <= 2**-8 * np.abs(expected).max()


@pytest.mark.parametrize("make", [mla_layer, gqa_layer])
@pytest.mark.parametrize("kv_type", KV_BOUNDS)
def test_a_token_that_is_not_finite_stays_visible(
    on_path: native.Kernels, make: type, kv_type: GGMLType
) -> None:
    layer = make(kv_type)
    fill(on_path, layer, 3)
    x = np.full(layer.width, np.nan)
    assert np.isnan(decode(on_path, layer, x, 3)).all()


@pytest.mark.parametrize("make", [mla_layer, gqa_layer])
@pytest.mark.parametrize("position", [-1, POSITIONS])
def test_a_position_outside_the_cache_is_refused(
    kernels: native.Kernels, make: type, position: int
) -> None:
    layer = make()
    with pytest.raises(AutoplaceError, match=f"do not fit together: .* at position={position}"):
        decode(kernels, layer, np.zeros(layer.width), position)


@pytest.mark.parametrize("part", ["input_norm", "kv_a", "kv_a_norm", "o", "q", "cache", "keys"])
def test_a_layer_that_lacks_a_part_is_refused(kernels: native.Kernels, part: str) -> None:
    layer = mla_layer()
    setattr(layer.struct, part, None if part == "keys" else type(getattr(layer.struct, part))())
    with pytest.raises(AutoplaceError, match="do not fit together"):
        decode(kernels, layer, np.zeros(layer.width), 0)


def test_matrices_of_other_widths_are_refused(kernels: native.Kernels) -> None:
    layer = gqa_layer()
    layer.struct.o.k += 1
    with pytest.raises(AutoplaceError, match="do not fit together"):
        decode(kernels, layer, np.zeros(layer.width), 0)
