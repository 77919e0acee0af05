"""What operators on a real GPU call, on CPU tensors by the interpreter, against the plain twins."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from autoplace.errors import AutoplaceError
from autoplace.hardware.ledger import Ledger
from autoplace.kernels.triton.dequantize import BLOCKS
from autoplace.models.allocation import Allocator
from autoplace.models.backend import kernels, slow_twin
from autoplace.models.source import TensorSource
from autoplace.operators import gpu_kernels, host_kernels
from autoplace.operators.device_fill import GPU_TYPES, fill_from_blocks
from autoplace.operators.device_pack import pack_there
from autoplace.operators.marlin import MarlinFormat, MarlinWeight, pack_rows, pack_rows_twin
from autoplace.placement import workspace
from autoplace.placement.workspace import load_transient_bytes
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.quantize import random_blocks
from autoplace.weights.synthesize import write_gguf
from tests.operators.weights import exact


def packed(count: int, out: int, width: int) -> MarlinWeight:
    form = MarlinFormat(out, width, 4)
    blocks = torch.zeros(count, form.n_bytes, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(out)
    for block in blocks:
        rows = torch.randn(out, width, generator=generator) / width**0.5
        pack_rows_twin(rows, 0, block, form)
    return MarlinWeight(blocks, form)


needs_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors are on the CPU")


@needs_interpreter
@pytest.mark.parametrize("tokens", [1, 6])
def test_a_packed_linear_gives_what_its_twin_does(tokens: int) -> None:
    weight, x = packed(1, 40, 130), torch.randn(tokens, 130)
    with slow_twin():
        expected = host_kernels.linear_from_marlin(x, weight)
    torch.testing.assert_close(
        gpu_kernels.linear_from_marlin(x, weight), expected, rtol=2e-5, atol=2e-5
    )


@needs_interpreter
@pytest.mark.parametrize("tokens", [1, 6])
def test_experts_give_what_their_twins_do(tokens: int) -> None:
    parts = packed(4, 24, 64), packed(4, 24, 64), packed(4, 64, 24)
    dense = tuple(
        torch.stack([part.rows(0, part.out_features, e) for e in range(4)]) for part in parts
    )
    x, ids = torch.randn(tokens, 64), torch.randint(4, (tokens, 2))
    weights = torch.rand(tokens, 2)
    with slow_twin():
        expected = host_kernels.experts_from_marlin(x, ids, weights, parts)
    for got in (
        gpu_kernels.experts_from_marlin(x, ids, weights, parts),
        gpu_kernels.experts_from_dense(x, ids, weights, dense),
    ):
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


def test_the_view_of_a_packed_weight_is_made_once_and_goes_with_it() -> None:
    weight = packed(1, 16, 64)
    assert gpu_kernels._matrices(weight) is gpu_kernels._matrices(weight)
    before = len(gpu_kernels._packed)
    del weight
    assert len(gpu_kernels._packed) == before - 1


def test_a_gpu_without_triton_is_an_error_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(AutoplaceError, match=r"KLinearMarlin runs on .* pip install"):
        gpu_kernels.require_triton("KLinearMarlin")


def test_types_that_the_gpu_dequantises_are_those_with_a_kernel() -> None:
    assert set(BLOCKS) == set(GPU_TYPES)


@pytest.mark.skipif(kernels() is None, reason="no compiler: no CPU packer")
def small_sources(folder: Path, ggml_type: GGMLType) -> tuple[TensorSource, TensorSource]:
    """A linear [40, 256] and two experts [2, 16, 256]."""
    infos = (
        TensorInfo("blk.0.linear.weight", (40, 256), ggml_type),
        TensorInfo("blk.0.ffn_up_exps.weight", (2, 16, 256), ggml_type),
    )
    metadata = {"general.architecture": "llama", "general.alignment": 32}
    write_gguf(folder / "small.gguf", metadata=metadata, tensors=infos, seed=3)
    gguf = GGUFFile.open(folder / "small.gguf")
    linear, experts = (TensorSource(gguf, info) for info in infos)
    return linear, experts


@pytest.mark.parametrize(
    ("ggml_type", "num_bits"),
    [(GGMLType.Q4_K, 4), (GGMLType.Q4_K, 8), (GGMLType.BF16, 4), (GGMLType.Q4_1, 4)],
    ids=str,
)
def test_a_weight_that_is_packed_on_the_device_is_the_one_that_the_host_packs(
    ggml_type: GGMLType,
    num_bits: int,
    tmp_path: Path,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A linear in two chunks of rows, experts one after the other; Q4_1 is decoded by the host."""
    monkeypatch.setattr(workspace, "LOAD_CHUNK_BYTES", 32 * 256 * 4)
    for source in small_sources(tmp_path, ggml_type):
        form = MarlinFormat(source.matrix_rows, source.width, num_bits)
        matrices = source.num_rows // source.matrix_rows
        got = torch.full((matrices, form.n_bytes), 0xAB, dtype=torch.uint8, device=device)
        ledger = Ledger({})
        pack_there(source, got, form, Allocator(ledger))
        assert ledger.peak("cpu") == load_transient_bytes(source.info.shape)
        expected = torch.full((matrices, form.n_bytes), 0xCD, dtype=torch.uint8)
        assert source.info.ggml_type is ggml_type
        for matrix, rows in enumerate(exact(source).view(matrices, -1, source.width)):
            pack_rows(rows, 0, expected[matrix], form)
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("stage_bytes", [1, 300, 1 << 20])
def test_blocks_go_to_the_device_in_stages_and_end_where_they_belong(
    stage_bytes: int, device: torch.device
) -> None:
    data = random_blocks(GGMLType.Q4_K, 6, std=1.0, rng=np.random.default_rng(0))
    target = torch.full((3, 512), float("nan"), device=device)
    fill_from_blocks(torch.from_numpy(data), GGMLType.Q4_K, target, stage_bytes=stage_bytes)
    expected = torch.from_numpy(dequantize(data, GGMLType.Q4_K)).view(3, 512)
    assert torch.equal(target.cpu(), expected)
