"""GGML's tensor types: how many weights a block holds and how many bytes it takes.

Source of the numbers: ggml's `ggml-common.h` block structs, as restated by the gguf package.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import prod


class GGMLType(IntEnum):
    """Type codes of GGUF tensors that autoplace reads."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30
    MXFP4 = 39


BLOCKS: dict[GGMLType, tuple[int, int]] = {
    # type: (weights a block, bytes a block)
    GGMLType.F32: (1, 4),
    GGMLType.F16: (1, 2),
    GGMLType.BF16: (1, 2),
    GGMLType.Q4_0: (32, 18),
    GGMLType.Q4_1: (32, 20),
    GGMLType.Q5_0: (32, 22),
    GGMLType.Q5_1: (32, 24),
    GGMLType.Q8_0: (32, 34),
    GGMLType.Q2_K: (256, 84),
    GGMLType.Q3_K: (256, 110),
    GGMLType.Q4_K: (256, 144),
    GGMLType.Q5_K: (256, 176),
    GGMLType.Q6_K: (256, 210),
    GGMLType.IQ4_NL: (32, 18),
    GGMLType.IQ4_XS: (256, 136),
    GGMLType.MXFP4: (32, 17),
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a GGUF file, or of a file that could be written.

    `shape` is in torch's order, rows first: a linear is (out, in), the routed experts of a layer
    are (experts, out, in). GGUF itself stores the dimensions the other way round.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType

    @property
    def n_elements(self) -> int:
        return prod(self.shape)

    @property
    def n_bytes(self) -> int:
        block_size, type_size = BLOCKS[self.ggml_type]
        return self.n_elements // block_size * type_size
