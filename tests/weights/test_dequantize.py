"""Blocks come back as the weights they stand for: against gguf-py, and by hand."""

import struct

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as oracle
from numpy.typing import NDArray

from autoplace.weights.blocks import LAYOUTS
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import BLOCKS, GGMLType


def random_bytes(ggml_type: GGMLType, n_blocks: int) -> NDArray[np.uint8]:
    """Every bit pattern, except float16 (and float32) infinities and NaNs."""
    rng = np.random.default_rng(ggml_type)
    data = rng.integers(0, 256, n_blocks * BLOCKS[ggml_type][1], dtype=np.uint8)
    if ggml_type is GGMLType.F32:
        return rng.standard_normal(n_blocks).astype(np.float32).view(np.uint8)
    if ggml_type is GGMLType.F16:
        halves = data.view(np.uint16)
        halves[(halves & 0x7C00) == 0x7C00] &= 0xBFFF
    if ggml_type in LAYOUTS:
        blocks = data.view(LAYOUTS[ggml_type])
        for field in {"d", "m", "dmin"} & set(blocks.dtype.names or ()):
            bits = blocks[field].view(np.uint16)
            blocks[field] = np.where((bits & 0x7C00) == 0x7C00, bits & 0xBFFF, bits).view("<f2")
    return data


@pytest.mark.parametrize("ggml_type", GGMLType)
def test_random_blocks_come_out_as_in_gguf_py_to_the_bit(ggml_type: GGMLType) -> None:
    # Over two chunks, the last one partial.
    n_blocks = 300_001 // BLOCKS[ggml_type][0]
    data = random_bytes(ggml_type, n_blocks)
    with np.errstate(over="ignore"):
        expected = oracle(data, gguf.GGMLQuantizationType(ggml_type)).reshape(-1)
    got = dequantize(data, ggml_type)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_every_byte_of_an_mxfp4_exponent_comes_out_as_in_gguf_py() -> None:
    blocks = np.zeros(256, LAYOUTS[GGMLType.MXFP4])
    blocks["e"] = np.arange(256)
    blocks["qs"] = np.arange(16) * 17
    data = blocks.view(np.uint8)
    with np.errstate(over="ignore"):
        expected = oracle(data, gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(dequantize(data, GGMLType.MXFP4), expected.reshape(-1))


def test_a_q4_0_block_by_hand() -> None:
    # d = 0.5; byte i holds i below (weight i) and 15 - i above (weight 16 + i).
    data = struct.pack("<e16B", 0.5, *(i | (15 - i) << 4 for i in range(16)))
    expected = [0.5 * (i - 8) for i in range(16)] + [0.5 * (7 - i) for i in range(16)]
    assert dequantize(np.frombuffer(data, np.uint8), GGMLType.Q4_0).tolist() == expected


def test_a_q5_0_block_by_hand() -> None:
    # d = 1, every nibble 3; the fifth bit is set for weight 0 and for weight 31 only.
    data = struct.pack("<eI16B", 1.0, 1 | 1 << 31, *[0x33] * 16)
    expected = [3.0] + [-13.0] * 30 + [3.0]
    assert dequantize(np.frombuffer(data, np.uint8), GGMLType.Q5_0).tolist() == expected


def test_a_q8_0_block_by_hand() -> None:
    data = struct.pack("<e32b", 0.25, *range(-16, 16))
    expected = [0.25 * value for value in range(-16, 16)]
    assert dequantize(np.frombuffer(data, np.uint8), GGMLType.Q8_0).tolist() == expected


def test_a_q4_k_block_by_hand() -> None:
    # d = 1, dmin = 0.5. Sub-block 0: scale 2, min 6. Sub-block 4: scale 16 + 1, min 32 + 2.
    scales = [2 | 1 << 6, 0, 0, 0, 6 | 2 << 6, 0, 0, 0, 1 | 2 << 4, 0, 0, 0]
    # Bytes 0-31 hold sub-blocks 0 (low, all 5) and 1 (high); 64-95 hold 4 (low, all 3) and 5.
    quants = [0x05] * 32 + [0] * 32 + [0x03] * 32 + [0] * 32
    data = struct.pack("<ee12B128B", 1.0, 0.5, *scales, *quants)
    weights = dequantize(np.frombuffer(data, np.uint8), GGMLType.Q4_K).reshape(8, 32)
    assert set(weights[0].tolist()) == {2 * 5 - 0.5 * 6}
    assert set(weights[4].tolist()) == {17 * 3 - 0.5 * 34}
    assert not weights[[1, 2, 3, 5, 6, 7]].any()


def test_a_q6_k_block_by_hand() -> None:
    # d = 0.5, scales 1 to 16; all bits 0 but weight 0: low nibble 5, high bits 3.
    data = struct.pack("<128B64B16be", 5, *[0] * 127, 3, *[0] * 63, *range(1, 17), 0.5)
    weights = dequantize(np.frombuffer(data, np.uint8), GGMLType.Q6_K)
    assert weights[0] == 0.5 * 1 * (5 + 3 * 16 - 32)
    assert weights[1] == 0.5 * 1 * -32
    assert weights[255] == 0.5 * 16 * -32


def test_a_given_output_is_filled_and_returned() -> None:
    out = np.full(2, np.nan, np.float32)
    assert dequantize(np.array([0x80, 0x3F, 0, 0xC0], np.uint8), GGMLType.BF16, out) is out
    assert out.tolist() == [1.0, -2.0]
