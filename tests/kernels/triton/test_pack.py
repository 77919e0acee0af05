"""Packing on the GPU gives the bytes of the CPU's packer, from blocks and from plain rows."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoplace.kernels.triton.dequantize import BLOCKS
from autoplace.kernels.triton.pack import PACKS, pack
from autoplace.models.backend import kernels
from autoplace.operators.marlin import MarlinFormat, pack_rows, pack_rows_twin
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import GGMLType
from autoplace.weights.quantize import random_blocks

needs_compiler = pytest.mark.skipif(kernels() is None, reason="no compiler: no CPU packer")
Bytes = NDArray[np.uint8]


def packed_by_cpu(rows: Tensor, form: MarlinFormat) -> Tensor:
    block = torch.full((form.n_bytes,), 0xAB, dtype=torch.uint8)
    pack_rows(rows, 0, block, form)
    return block


def packed_by_triton(
    data: Bytes, ggml_type: GGMLType, form: MarlinFormat, device: torch.device, chunk: int = 0
) -> Tensor:
    """In chunks of so many rows, into bytes that were something else before."""
    block = torch.full((form.n_bytes,), 0xCD, dtype=torch.uint8, device=device)
    source = torch.from_numpy(data).view(form.out_features, -1)
    for first in range(0, form.out_features, chunk or form.out_features):
        part = source[first : first + (chunk or form.out_features)].flatten().to(device)
        shape = form.out_features, form.in_features
        pack(part, ggml_type, block, first_row=first, shape=shape, num_bits=form.num_bits)
    return block.cpu()


def float_bytes(rows: Tensor) -> Bytes:
    return rows.contiguous().view(torch.uint8).flatten().numpy()


@needs_compiler
@pytest.mark.parametrize("num_bits", [4, 8])
@pytest.mark.parametrize("number", sorted(BLOCKS))
def test_blocks_of_every_type_pack_to_the_cpus_bytes(
    number: int, num_bits: int, device: torch.device
) -> None:
    ggml_type = GGMLType(number)
    form = MarlinFormat(19, 256 if BLOCKS[number][0] == 256 else 96, num_bits)
    n = form.out_features * form.in_features // BLOCKS[number][0]
    data = random_blocks(ggml_type, n, std=1.0, rng=np.random.default_rng(number))
    rows = torch.from_numpy(dequantize(data, ggml_type)).view(19, -1)
    got = packed_by_triton(data, ggml_type, form, device)
    assert torch.equal(got, packed_by_cpu(rows, form))


@needs_compiler
@pytest.mark.parametrize("num_bits", [4, 8])
@pytest.mark.parametrize(("out", "width"), [(1, 1), (16, 128), (33, 200), (70, 65)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_plain_rows_of_odd_shapes_pack_to_the_cpus_bytes_padding_included(
    out: int, width: int, num_bits: int, dtype: torch.dtype, device: torch.device
) -> None:
    rows = torch.randn(out, width, generator=torch.Generator().manual_seed(out)).to(dtype)
    ggml_type = {torch.float32: GGMLType.F32, torch.float16: GGMLType.F16}
    form = MarlinFormat(out, width, num_bits)
    got = packed_by_triton(
        float_bytes(rows), ggml_type.get(dtype, GGMLType.BF16), form, device, chunk=32
    )
    assert torch.equal(got, packed_by_cpu(rows.float(), form))


def hard_rows() -> Tensor:
    """Zeros, ties, one weight alone, scales of every size, the bounds of both code ranges."""
    rows = torch.zeros(16, 128)
    rows[1] = torch.arange(128) - 64.0
    rows[2, 5] = 3.0
    rows[3, 64:] = -7.5
    rows[4, :64] = torch.linspace(-7.5, 7.5, 64)
    rows[5] = torch.randn(128, generator=torch.Generator().manual_seed(0)) * 1e30
    rows[6] = rows[5] * 1e-60
    rows[7, ::2], rows[7, 1::2] = 2.0**-119, -(2.0**-120)
    rows[8] = -0.0
    rows[9, 0], rows[9, 1:] = 15.0, torch.arange(127) % 15 + 0.5
    rows[10, 0], rows[10, 1:] = -127.5, torch.arange(127) + 0.5
    rows[11] = 65504.0
    rows[12, 0], rows[12, 1:] = 1.0, 2.0**-24
    return rows


@needs_compiler
@pytest.mark.parametrize("num_bits", [4, 8])
def test_hard_groups_pack_to_the_cpus_bytes(num_bits: int, device: torch.device) -> None:
    form = MarlinFormat(16, 128, num_bits)
    got = packed_by_triton(float_bytes(hard_rows()), GGMLType.F32, form, device)
    assert torch.equal(got, packed_by_cpu(hard_rows(), form))


@pytest.mark.parametrize("num_bits", [4, 8])
def test_real_rows_are_those_of_the_plain_twin_too(num_bits: int, device: torch.device) -> None:
    rows = torch.cat((hard_rows(), torch.randn(48, 128)))
    form = MarlinFormat(64, 128, num_bits)
    twin = torch.zeros(form.n_bytes, dtype=torch.uint8)
    pack_rows_twin(rows.clone(), 0, twin, form)
    assert torch.equal(packed_by_triton(float_bytes(rows), GGMLType.F32, form, device), twin)


def test_rows_that_end_inside_a_tile_before_the_last_are_refused(device: torch.device) -> None:
    form = MarlinFormat(40, 128, 4)
    block = torch.zeros(form.n_bytes, dtype=torch.uint8, device=device)
    source = torch.zeros(20 * 128 * 4, dtype=torch.uint8, device=device)
    with pytest.raises(ValueError, match=r"tiles of 16 rows .* and rows 16 … 36"):
        pack(source, GGMLType.F32, block, first_row=16, shape=(40, 128), num_bits=4)


def test_a_type_that_only_the_host_decodes_is_refused_with_those_that_pack() -> None:
    assert GGMLType.Q4_1 not in PACKS
    nothing = torch.zeros(0, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"\[0, 1, 2, .*30\] but got 3"):
        pack(nothing, GGMLType.Q4_1, nothing, first_row=0, shape=(16, 128), num_bits=4)
