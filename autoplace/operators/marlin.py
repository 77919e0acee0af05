"""Marlin's weights: symmetric, groups of 64 along a row, 4 or 8 bits, bfloat16 scales.

The quantiser is that of GPTQ-Marlin as KTransformers calls it (`quantize_weights`): the scale of a
group is 2 · max|w| / (2ᵇ - 1), stored codes are round(w / scale) + 2ᵇ⁻¹ within 0 … 2ᵇ - 1, so an
error is at most half a scale. Here the scale is rounded to bfloat16 before it divides.

Rows are padded to a multiple of 128 weights and their number to a multiple of 64. In memory a row
is its codes, group after group: 64 bytes at 8 bits; at 4 bits 32 bytes, byte j of a group with
weight j in its low and weight j + 32 in its high half.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 64
PAD_IN = 128
PAD_OUT = 64


def padded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True, eq=False)
class MarlinWeight:
    """One matrix [out, in], or the experts of a layer [E, out, in], packed."""

    codes: Tensor
    """uint8 [..., out↑64, in↑128 · bits / 8]."""
    scales: Tensor
    """bfloat16 [..., out↑64, in↑128 / 64]."""
    num_bits: int
    shape: tuple[int, ...]
    """Without padding."""

    def of_expert(self, expert: int) -> "MarlinWeight":
        """A view of one expert's matrix."""
        return MarlinWeight(self.codes[expert], self.scales[expert], self.num_bits, self.shape[1:])

    def rows(self, start: int, end: int, matrix: int = 0) -> Tensor:
        """Float32 rows start … end of a matrix, without padding: [end - start, in]."""
        codes = self.codes.view(-1, *self.codes.shape[-2:])[matrix, start:end]
        scales = self.scales.view(-1, *self.scales.shape[-2:])[matrix, start:end]
        weights = unpack(codes, self.num_bits).sub_(1 << (self.num_bits - 1))
        weights.mul_(scales.float()[..., None])
        return weights.flatten(-2)[:, : self.shape[-1]]


def packed_shapes(shape: tuple[int, ...], num_bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of codes and scales for a weight [..., out, in]."""
    rows, width = padded(shape[-2], PAD_OUT), padded(shape[-1], PAD_IN)
    lead = shape[:-2]
    return (*lead, rows, width * num_bits // 8), (*lead, rows, width // GROUP)


def quantize_rows(rows: Tensor, num_bits: int) -> tuple[Tensor, Tensor]:
    """Float32 [n, in] → packed codes uint8 [n, in↑128 · bits / 8] and scales [n, in↑128 / 64].

    `rows` is used up: it is divided and rounded in place where it needs no padding.
    """
    missing = padded(rows.shape[-1], PAD_IN) - rows.shape[-1]
    groups = (functional.pad(rows, (0, missing)) if missing else rows).view(len(rows), -1, GROUP)
    top, zero = (1 << num_bits) - 1, 1 << (num_bits - 1)
    largest = torch.maximum(groups.amax(-1), groups.amin(-1).neg_())
    scales = (largest * (2.0 / top)).to(torch.bfloat16)
    inverse = torch.where(scales > 0, 1.0 / scales.float(), 0.0)
    codes = groups.mul_(inverse[..., None]).round_().add_(zero).clamp_(0, top).to(torch.uint8)
    return pack(codes, num_bits), scales


def pack(codes: Tensor, num_bits: int) -> Tensor:
    """Codes [n, groups, 64] → bytes [n, groups · 64 · bits / 8]."""
    if num_bits == 8:
        return codes.flatten(-2)
    low, high = codes.chunk(2, -1)
    return low.bitwise_or(high.bitwise_left_shift(4)).flatten(-2)


def unpack(packed: Tensor, num_bits: int) -> Tensor:
    """Bytes [n, width] → codes as float32 [n, groups, 64]."""
    groups = packed.reshape(len(packed), -1, GROUP * num_bits // 8)
    if num_bits == 8:
        return groups.float()
    halves = groups.bitwise_and(15), groups.bitwise_right_shift(4)
    return torch.cat(halves, -1).float()
