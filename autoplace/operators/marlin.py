"""Marlin's weights: symmetric, groups of 64 along a row, 4 or 8 bits, bfloat16 scales.

The quantiser is that of GPTQ-Marlin as KTransformers calls it (`quantize_weights`): the scale of a
group is 2 · max|w| / (2ᵇ - 1), codes are round(w / scale) within -2ᵇ⁻¹ … 2ᵇ⁻¹ - 1, so an error is
at most half a scale. Here the scale is rounded to bfloat16 before it divides.

The format is that of `kernels/include/autoplace/marlin_format.hpp`, one block of bytes a matrix:
rows padded to a multiple of 64, weights of a row to a multiple of 128; the codes of 16 rows
side by side, then all scales.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from autoplace.models.backend import kernels
from autoplace.native import Weights

GROUP = 64
TILE_ROWS = 16
_PAD_IN, _PAD_OUT = 128, 64


def _padded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class MarlinFormat:
    """Where the codes and scales of an [out, in] matrix are in its block of bytes."""

    out_features: int
    in_features: int
    num_bits: int

    @property
    def num_groups(self) -> int:
        return _padded(self.in_features, _PAD_IN) // GROUP

    @property
    def num_tiles(self) -> int:
        return _padded(self.out_features, _PAD_OUT) // TILE_ROWS

    @property
    def code_bytes(self) -> int:
        return self.num_tiles * TILE_ROWS * self.num_groups * GROUP * self.num_bits // 8

    @property
    def n_bytes(self) -> int:
        return self.code_bytes + self.num_tiles * self.num_groups * TILE_ROWS * 2

    def codes(self, block: Tensor) -> Tensor:
        """[tiles, bytes of a row / 4, 16, 4] uint8: a view of the block."""
        return block[: self.code_bytes].view(self.num_tiles, -1, TILE_ROWS, 4)

    def scales(self, block: Tensor) -> Tensor:
        """[tiles, groups, 16] bfloat16: a view of the block."""
        return block[self.code_bytes :].view(torch.bfloat16).view(self.num_tiles, -1, TILE_ROWS)


def pack_rows(rows: Tensor, first_row: int, block: Tensor, form: MarlinFormat) -> None:
    """Quantise float32 rows [n, in] of a matrix into its block, by the kernel if there is one."""
    native = kernels()
    if native is None:
        pack_rows_twin(rows, first_row, block, form)
        return
    shape = (len(rows), form.out_features, form.in_features)
    rows = rows.contiguous()
    native.marlin_pack(rows.data_ptr(), first_row, *shape, form.num_bits, block.data_ptr())


def pack_rows_twin(rows: Tensor, first_row: int, block: Tensor, form: MarlinFormat) -> None:
    """The same by plain torch; first_row is a multiple of 16.

    `n` is a multiple of 16 unless these are the last rows; padding is left as it is. `rows` is
    used up.
    """
    assert first_row % TILE_ROWS == 0, first_row
    n = len(rows)
    missing = form.num_groups * GROUP - form.in_features
    rest = -n % TILE_ROWS
    if missing or rest:
        rows = functional.pad(rows, (0, missing, 0, rest))
    codes, scales = _quantize(rows.view(-1, form.num_groups, GROUP), form.num_bits)
    tiles = slice(first_row // TILE_ROWS, (first_row + n + rest) // TILE_ROWS)
    form.codes(block)[tiles] = _interleave(codes.view(n + rest, -1), form.num_bits)
    form.scales(block)[tiles] = scales.view(-1, TILE_ROWS, form.num_groups).transpose(1, 2)


def unpack_rows(start: int, end: int, block: Tensor, form: MarlinFormat) -> Tensor:
    """Float32 rows start … end of a matrix, without padding: [end - start, in]."""
    first, last = start // TILE_ROWS, -(-end // TILE_ROWS)
    packed = form.codes(block)[first:last].transpose(1, 2)  # [tiles, 16, in bytes / 4, 4]
    if form.num_bits == 8:
        codes = packed.view(torch.int8).float()
    else:
        halves = packed.bitwise_and(15), packed.bitwise_right_shift(4)
        codes = torch.cat(halves, -1).float().sub_(8)
    scales = form.scales(block)[first:last].transpose(1, 2).float()  # [tiles, 16, groups]
    weights = codes.reshape(*scales.shape, GROUP) * scales[..., None]
    rows = weights.reshape((last - first) * TILE_ROWS, -1)
    offset = first * TILE_ROWS
    return rows[start - offset : end - offset, : form.in_features]


def _quantize(groups: Tensor, num_bits: int) -> tuple[Tensor, Tensor]:
    """Float32 [n, groups, 64], in place, → signed codes as int8 and bfloat16 scales [n, groups]."""
    top, half = (1 << num_bits) - 1, 1 << (num_bits - 1)
    largest = torch.maximum(groups.amax(-1), groups.amin(-1).neg_()).abs_()  # 0, never -0
    scales = (2.0 * largest / top).to(torch.bfloat16)  # in the order of the compiled packer
    inverse = torch.where(scales > 0, 1.0 / scales.float(), 0.0)
    codes = groups.mul_(inverse[..., None]).round_().clamp_(-half, half - 1)
    return codes.to(torch.int8), scales


def _interleave(codes: Tensor, num_bits: int) -> Tensor:
    """Signed codes [n, in] → bytes [n / 16, in bytes / 4, 16, 4]."""
    tiles = codes.view(-1, TILE_ROWS, codes.shape[-1])
    if num_bits == 8:
        eight = tiles.view(torch.uint8)
        return eight.view(len(tiles), TILE_ROWS, -1, 4).transpose(1, 2)
    low, high = tiles.add(8).view(torch.uint8).view(len(tiles), TILE_ROWS, -1, 8).chunk(2, -1)
    return low.bitwise_or(high.bitwise_left_shift(4)).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class MarlinWeight:
    """One matrix, or one a routed expert, packed."""

    blocks: Tensor
    """uint8 [E, bytes of a matrix]; E is 1 for a linear."""
    form: MarlinFormat

    @cached_property
    def weights(self) -> Weights:
        """As the kernels take it."""
        return Weights(self.blocks.data_ptr(), None, self.form.num_bits)

    @property
    def out_features(self) -> int:
        return self.form.out_features

    def rows(self, start: int, end: int, matrix: int = 0) -> Tensor:
        """Float32 rows start … end of a matrix: [end - start, in]."""
        return unpack_rows(start, end, self.blocks[matrix], self.form)
