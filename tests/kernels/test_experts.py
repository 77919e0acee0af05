"""Routed experts as one operator against the plain loop over experts in float64."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from autoplace import native
from autoplace.errors import AutoplaceError
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import BLOCKS, GGMLType
from autoplace.weights.quantize import random_blocks

T = GGMLType
H, WIDTH, E, A = 256, 96, 5, 3  # model width, expert width, experts, experts a token
MIXES = {
    "q4_k-q5_0": (T.Q4_K, T.Q4_K, T.Q5_0),
    "q4_k-q8_0": (T.Q4_K, T.Q4_K, T.Q8_0),
    "mixed": (T.Q6_K, T.Q3_K, T.IQ4_NL),
    "bf16": (T.BF16, T.BF16, T.BF16),
    "f16-q8_0": (T.F16, T.Q8_0, T.F32),
}


@dataclass(frozen=True)
class Experts:
    """The three stacks of a layer: bytes as the kernel gets them, floats as they stand for."""

    types: tuple[GGMLType, GGMLType, GGMLType]
    blocks: tuple[NDArray[np.uint8], ...]
    floats: tuple[NDArray[np.float64], ...]

    @classmethod
    def random(cls, types: tuple[GGMLType, GGMLType, GGMLType]) -> "Experts":
        rng = np.random.default_rng(0)
        count = E * H * WIDTH
        blocks = tuple(random_blocks(t, count // BLOCKS[t][0], std=0.1, rng=rng) for t in types)
        shapes = ((E, WIDTH, H), (E, WIDTH, H), (E, H, WIDTH))
        floats = tuple(
            dequantize(b, t).astype(np.float64).reshape(shape)
            for b, t, shape in zip(blocks, types, shapes, strict=True)
        )
        return cls(types, blocks, floats)

    def weights(self) -> list[native.Weights]:
        return [
            native.Weights(b.ctypes.data, t) for b, t in zip(self.blocks, self.types, strict=True)
        ]


def by_hand(
    floats: tuple[NDArray[np.float64], ...],
    x: NDArray[np.float32],
    ids: NDArray[np.int64],
    weights: NDArray[np.float32],
) -> NDArray[np.float64]:
    gate, up, down = floats
    out = np.zeros((len(x), H))
    for t, row in enumerate(x.astype(np.float64)):
        for expert, weight in zip(ids[t], weights[t], strict=True):
            g = gate[expert] @ row
            hidden = g / (1 + np.exp(-g)) * (up[expert] @ row)
            out[t] += float(weight) * (down[expert] @ hidden)
    return out


def run_experts(
    kernels: native.Kernels,
    stacks: list[native.Weights],
    x: NDArray[np.float32],
    ids: NDArray[np.int64],
    weights: NDArray[np.float32],
) -> NDArray[np.float32]:
    out = np.full((len(x), H), np.nan, np.float32)
    kernels.experts(
        *(x.ctypes.data, T.F32, len(x), H, ids.ctypes.data, weights.ctypes.data),
        *(ids.shape[1], E, WIDTH, *stacks, out.ctypes.data),
    )
    return out


def random_routing(num_tokens: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(E)[:A] for _ in range(num_tokens)]).astype(np.int64)
    return ids, rng.random((num_tokens, A), np.float32)


def relative_error(out: NDArray[np.float32], exact: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(out - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 40])
def test_routed_experts_are_the_weighted_sum_of_each_tokens_experts(
    on_path: native.Kernels, mix: str, num_tokens: int
) -> None:
    """Rounding x, then h, to 8 bits costs under 2 % of the norm; plain float32 under 1e-5.

    Of normal x, 32 of which peak at 2.2 σ: 2.2 / 127 / √12 = 0.5 % for gate and for up, 0.8 %
    for the longer-tailed h; together 1.1 to 1.4 %.
    """
    experts = Experts.random(MIXES[mix])
    x = np.random.default_rng(9).standard_normal((num_tokens, H), np.float32)
    ids, weights = random_routing(num_tokens)
    out = run_experts(on_path, experts.weights(), x, ids, weights)
    exact = by_hand(experts.floats, x, ids, weights)
    plain = on_path.path == "scalar" or mix == "bf16"
    assert relative_error(out, exact) < (1e-5 if plain else 2e-2)


def test_experts_that_all_tokens_chose_and_experts_nobody_chose_are_fine(
    on_path: native.Kernels,
) -> None:
    experts = Experts.random(MIXES["q4_k-q5_0"])
    x = np.random.default_rng(2).standard_normal((9, H), np.float32)
    ids = np.full((9, 1), 3, np.int64)
    weights = np.ones((9, 1), np.float32)
    out = run_experts(on_path, experts.weights(), x, ids, weights)
    assert relative_error(out, by_hand(experts.floats, x, ids, weights)) < 2e-2


def test_the_same_call_gives_the_same_bits_with_any_number_of_threads(
    kernels: native.Kernels,
) -> None:
    experts = Experts.random(MIXES["q4_k-q8_0"])
    x = np.random.default_rng(4).standard_normal((12, H), np.float32)
    ids, weights = random_routing(12)
    before, results = kernels.num_threads, []
    for num_threads in (1, 2, 5):
        kernels.set_num_threads(num_threads)
        results.append(run_experts(kernels, experts.weights(), x, ids, weights))
    kernels.set_num_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("bad", [-1, E])
def test_an_expert_that_does_not_exist_is_refused(kernels: native.Kernels, bad: int) -> None:
    experts = Experts.random(MIXES["bf16"])
    ids, weights = random_routing(2)
    ids[1, 2] = bad
    x = np.zeros((2, H), np.float32)
    with pytest.raises(AutoplaceError, match=rf"expert ids in \[0, 5\) but got {bad}"):
        run_experts(kernels, experts.weights(), x, ids, weights)


@pytest.mark.parametrize("num_bits", [4, 8])
@pytest.mark.parametrize("num_tokens", [1, 11])
def test_packed_experts_compute_with_their_own_weights(
    on_path: native.Kernels, num_bits: int, num_tokens: int
) -> None:
    experts = Experts.random(MIXES["bf16"])
    packed, exact_floats = [], []
    for stack in experts.floats:
        _, n, k = stack.shape
        size = native.marlin_bytes(n, k, num_bits)
        buffer = np.zeros(E * size, np.uint8)
        rows = np.ascontiguousarray(stack, np.float32)
        for e in range(E):
            place = buffer.ctypes.data + e * size
            on_path.marlin_pack(rows[e].ctypes.data, 0, n, n, k, num_bits, place)
        packed.append(buffer)
        floats = [unpack_by_product(on_path, buffer[e * size :], n, k, num_bits) for e in range(E)]
        exact_floats.append(np.stack(floats))
    x = np.random.default_rng(6).standard_normal((num_tokens, H), np.float32)
    ids, weights = random_routing(num_tokens)
    stacks = [native.Weights(b.ctypes.data, None, num_bits) for b in packed]
    out = run_experts(on_path, stacks, x, ids, weights)
    exact = by_hand(tuple(exact_floats), x, ids, weights)
    assert relative_error(out, exact) < (1e-5 if on_path.path == "scalar" else 2e-2)


def unpack_by_product(
    kernels: native.Kernels, packed: NDArray[np.uint8], n: int, k: int, num_bits: int
) -> NDArray[np.float64]:
    """[N, K]: the weights that the packed form stands for, as its product with the identity."""
    identity = np.eye(k, dtype=np.float32)
    out = np.zeros((k, n), np.float32)
    kernels.marlin_linear(
        *(identity.ctypes.data, T.F32, k, k, packed.ctypes.data, num_bits, n, out.ctypes.data)
    )
    return out.T.astype(np.float64)
