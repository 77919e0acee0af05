"""Rotary position embedding: frequencies, YaRN, and the two orders of pairs.

YaRN as in Hugging Face's `_compute_yarn_parameters` and llama.cpp's `ggml_rope_yarn_corr_dims`.
"""

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from autoplace.architectures.geometry import Rope


def inverse_frequencies(rope: Rope) -> Tensor:
    """Radians a position of every pair: [dim / 2] float32, on the host."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    plain = 1.0 / rope.theta**exponents
    if rope.yarn_factor == 1.0:
        return plain
    low = max(floor(_correction_dim(rope, rope.yarn_beta_fast)), 0)
    high = min(ceil(_correction_dim(rope, rope.yarn_beta_slow)), rope.dim - 1)
    ramp = (torch.arange(rope.dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    interpolated = ramp.clamp(0, 1)
    return plain / rope.yarn_factor * interpolated + plain * (1 - interpolated)


def _correction_dim(rope: Rope, num_rotations: float) -> float:
    """The pair that turns this often over the original context."""
    turns = log(rope.original_context / (num_rotations * 2 * pi))
    return float(rope.dim * turns / (2 * log(rope.theta)))


def yarn_attention_factor(rope: Rope) -> float:
    """What YaRN multiplies rotated queries and keys by, outside DeepSeek."""
    return 1.0 if rope.yarn_factor == 1.0 else 0.1 * log(rope.yarn_factor) + 1.0


def mla_softmax_scale(rope: Rope, qk_dim: int) -> float:
    """DeepSeek's softmax scale: 1 / √d · mscale², mscale = 1 + 0.1 · mscale_all_dim · ln factor."""
    mscale = 1.0 + rope.yarn_log_multiplier * log(rope.yarn_factor)
    return float(qk_dim**-0.5 * mscale * mscale)


def rotations(positions: Tensor, frequencies: Tensor, factor: float) -> Tensor:
    """Complex unit rotations times a factor: [T] positions, [d/2] → [T, 1, d/2] complex64."""
    angles = positions.to(torch.float32)[:, None, None] * frequencies
    return torch.polar(torch.full_like(angles, factor), angles)


def rotate(x: Tensor, turns: Tensor, *, interleaved: bool) -> Tensor:
    """Turn every pair of [T, heads, d]; the pairs stay where they are in the last dimension."""
    if interleaved:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
    first, second = x.float().chunk(2, -1)
    turned = torch.complex(first, second) * turns
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)
