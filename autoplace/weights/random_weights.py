"""Random weights for every tensor of a model, scaled so that its logits are finite and differ.

With normalised inputs, weights of deviation 1/sqrt(inputs) keep a linear's outputs near 1. The
output gives logits of deviation 2, the router likewise, so that the routing varies from token to
token and is not a tie. Nothing of this resembles a trained model but the sizes.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from autoplace.weights.ggml import BLOCKS, GGMLType, TensorInfo
from autoplace.weights.quantize import quantize, random_blocks

Bytes = NDArray[np.uint8]

LOGIT_STD = 2.0
"""Of the output and of the router."""

POOL_BYTES = 4 << 20
"""A longer tensor is made of pieces of a pool of this size."""


@dataclass(frozen=True)
class Distribution:
    """Normal, for float types; for quantised ones of about that deviation."""

    mean: float
    std: float


def distribution(info: TensorInfo, *, tied_embeddings: bool) -> Distribution:
    """How the weights of a tensor are distributed, by its name and shape."""
    name, fan_in = info.name, info.shape[-1]
    if name.startswith("rope_"):
        return Distribution(1.0, 0.0)  # factors of the rotary frequencies: 1 changes nothing
    if name.endswith("_norm.weight"):
        return Distribution(1.0, 0.1)
    if name.endswith(".bias"):
        return Distribution(0.0, 0.02)
    if name == "token_embd.weight" and not tied_embeddings:
        return Distribution(0.0, 1.0)
    if name in ("token_embd.weight", "output.weight") or ".ffn_gate_inp." in name:
        return Distribution(0.0, LOGIT_STD / sqrt(fan_in))
    if name.endswith("attn_k_b.weight"):
        fan_in = info.shape[-2]  # stored transposed, to be multiplied with q instead of k
    return Distribution(0.0, 1 / sqrt(fan_in))


@dataclass
class RandomWeights:
    """The bytes of any tensor. A tensor depends on the seed, its name, shape and type only."""

    seed: int
    tied_embeddings: bool
    _pools: dict[tuple[GGMLType, float], Bytes] = field(default_factory=dict)

    def pieces(self, info: TensorInfo) -> Iterator[Bytes]:
        """The tensor's bytes in order, in pieces of at most `POOL_BYTES`.

        A small tensor is drawn whole. A big one is a sequence of slices of one pool of random
        blocks per type and deviation, each starting anywhere in it, drawn anew for every tensor:
        as fast as copying, with no two rows, experts or tensors alike but by chance.
        """
        rng = np.random.default_rng((self.seed, zlib.crc32(info.name.encode())))
        wanted = distribution(info, tied_embeddings=self.tied_embeddings)
        if info.n_bytes <= POOL_BYTES or wanted.mean:
            yield _draw(info.ggml_type, info.n_elements, wanted, rng)
            return
        pool = self._pool(info.ggml_type, wanted.std)
        type_size = BLOCKS[info.ggml_type][1]
        rest = info.n_bytes
        while rest:
            start = int(rng.integers(len(pool) // type_size // 2)) * type_size
            piece = pool[start : start + rest]
            rest -= len(piece)
            yield piece

    def _pool(self, ggml_type: GGMLType, std: float) -> Bytes:
        key = (ggml_type, std)
        if key not in self._pools:
            rng = np.random.default_rng((self.seed, ggml_type, int(std * 1e9)))
            n_blocks = POOL_BYTES // BLOCKS[ggml_type][1]
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
