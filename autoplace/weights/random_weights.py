"""Random weights for every tensor of a model, scaled so that its logits are finite and differ.

With normalised inputs, weights of deviation 1/sqrt(inputs) keep a linear's outputs near 1. What is
added to the residual stream is smaller, by 1/sqrt(2 · layers) as in GPT-2, so that rounding in one
layer (or another expert, where two are nearly tied) does not change all the following ones. The
output gives logits of deviation 2, the router likewise, so that the routing varies from token to
token. Nothing of this resembles a trained model but the sizes.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from autoplace.weights.ggml import BLOCKS, GGMLType, TensorInfo
from autoplace.weights.quantize import quantize, random_blocks

Bytes = NDArray[np.uint8]

LOGIT_STD = 2.0
"""Of the output and of the router."""

POOL_WEIGHTS = 1 << 22
"""A bigger tensor is made of slices of a pool of this size."""

_STEP_WEIGHTS = 256
"""Slices start at multiples of it: a whole number of blocks in every type."""


@dataclass(frozen=True)
class Distribution:
    """Normal, for float types; for quantised ones of about that deviation."""

    mean: float
    std: float


@dataclass(frozen=True)
class Surroundings:
    """What the distribution of one tensor depends on in the others."""

    num_layers: int
    tied_embeddings: bool

    @staticmethod
    def of(tensors: Sequence[TensorInfo]) -> "Surroundings":
        names = [info.name for info in tensors]
        layers = {name.split(".")[1] for name in names if name.startswith("blk.")}
        return Surroundings(max(1, len(layers)), "output.weight" not in names)


def distribution(info: TensorInfo, around: Surroundings) -> Distribution:
    """How the weights of a tensor are distributed, by its name and shape."""
    name, fan_in = info.name, info.shape[-1]
    if name.startswith("rope_"):
        return Distribution(1.0, 0.0)  # factors of the rotary frequencies: 1 changes nothing
    if name.endswith("norm.weight"):
        return Distribution(1.0, 0.1)
    if name.endswith(".bias"):
        return Distribution(0.0, 0.02)
    if name == "token_embd.weight" and not around.tied_embeddings:
        return Distribution(0.0, 1.0)
    if name in ("token_embd.weight", "output.weight") or ".ffn_gate_inp." in name:
        return Distribution(0.0, LOGIT_STD / sqrt(fan_in))
    if name.endswith("attn_k_b.weight"):
        fan_in = info.shape[-2]  # stored transposed, to be multiplied with q instead of k
    adds_to_residual = name.endswith("attn_output.weight") or ".ffn_down" in name
    return Distribution(0.0, 1 / sqrt(fan_in * (2 * around.num_layers if adds_to_residual else 1)))


@dataclass
class RandomWeights:
    """The bytes of any tensor; its randomness comes from the seed and its name."""

    seed: int
    around: Surroundings
    _pools: dict[tuple[GGMLType, float], Bytes] = field(default_factory=dict)

    def pieces(self, info: TensorInfo) -> Iterator[Bytes]:
        """The tensor's bytes in order, in pieces of at most `POOL_WEIGHTS` weights.

        A small tensor is drawn whole. A big one is a sequence of slices of one pool of random
        blocks per type and deviation, each starting anywhere in its first half, drawn anew for
        every slice of every tensor: as fast as copying, with no two rows, experts or tensors alike
        but by chance. For one seed F32, F16, BF16 and Q8_0 hold the same weights, rounded.
        """
        rng = np.random.default_rng((self.seed, zlib.crc32(info.name.encode())))
        wanted = distribution(info, self.around)
        if info.n_elements <= POOL_WEIGHTS or wanted.mean:
            yield _draw(info.ggml_type, info.n_elements, wanted, rng)
            return
        pool = self._pool(info.ggml_type, wanted.std)
        step_bytes = _STEP_WEIGHTS * len(pool) // POOL_WEIGHTS
        rest = info.n_bytes
        while rest:
            start = int(rng.integers(POOL_WEIGHTS // _STEP_WEIGHTS // 2)) * step_bytes
            piece = pool[start : start + rest]
            rest -= len(piece)
            yield piece

    def _pool(self, ggml_type: GGMLType, std: float) -> Bytes:
        key = (ggml_type, std)
        if key not in self._pools:
            rng = np.random.default_rng((self.seed, int(std * 1e9)))
            n_blocks = POOL_WEIGHTS // BLOCKS[ggml_type][0]
            self._pools[key] = random_blocks(ggml_type, n_blocks, std=std, rng=rng)
        return self._pools[key]


def _draw(
    ggml_type: GGMLType, n_elements: int, wanted: Distribution, rng: np.random.Generator
) -> Bytes:
    if wanted.mean:
        noise = rng.standard_normal(n_elements, np.float32) * np.float32(wanted.std)
        return quantize(noise + np.float32(wanted.mean), ggml_type)
    n_blocks = n_elements // BLOCKS[ggml_type][0]
    return random_blocks(ggml_type, n_blocks, std=wanted.std, rng=rng)
