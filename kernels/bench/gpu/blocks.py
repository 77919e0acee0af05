"""Stages `dequantise` and `pack`: GGUF blocks on the GPU against numpy and the CPU's packer."""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from autoplace.kernels.bench.gpu.report import Report
from autoplace.kernels.bench.gpu.timing import rate, seconds_of
from autoplace.kernels.triton.dequantize import BLOCKS, dequantize
from autoplace.kernels.triton.pack import pack
from autoplace.operators.marlin import MarlinFormat, pack_rows
from autoplace.weights import dequantize as numpy_twin
from autoplace.weights.ggml import GGMLType
from autoplace.weights.quantize import random_blocks


def check_dequantisation(report: Report) -> None:
    for number in BLOCKS:
        ggml_type = GGMLType(number)
        report.case(f"dequantise {ggml_type.name}", partial(_dequantise, report, ggml_type))


def check_packing(report: Report) -> None:
    for number in BLOCKS:
        for bits in (4, 8):
            ggml_type = GGMLType(number)
            what = f"pack {ggml_type.name} to {bits} bits"
            report.case(what, partial(_pack, report, what, ggml_type, bits))


def _dequantise(report: Report, ggml_type: GGMLType) -> None:
    """To the bit on the first weights and on blocks of any bits; timed on 64 M weights."""
    block_size, type_size = BLOCKS[ggml_type]
    n = 3 if report.interpret else (1 << 21) // block_size
    rng = np.random.default_rng(0)
    drawn = random_blocks(ggml_type, n, std=1.0, rng=rng)
    wild = rng.integers(0, 256, n * type_size, dtype=np.uint8)
    for kind, data in (("drawn", drawn), ("any bits", wild)):
        out = torch.empty(n * block_size, device=report.device)
        dequantize(torch.from_numpy(data).to(report.device), ggml_type, out)
        same = _same(out.cpu().numpy(), data, ggml_type)
        report.add(f"dequantise {ggml_type.name}, {kind}", "same bits" if same else "OTHER", same)
    many = 1 if report.interpret else 32
    blocks = torch.from_numpy(np.tile(drawn, many)).to(report.device)
    out = torch.empty(many * n * block_size, dtype=torch.bfloat16, device=report.device)
    seconds = seconds_of(report, lambda: dequantize(blocks, ggml_type, out))
    told = rate(report, seconds, blocks.nbytes + out.nbytes, 0)
    report.add(f"dequantise {ggml_type.name} to bf16, {out.numel()} weights", told, good=True)


def _same(got: NDArray[np.float32], data: NDArray[np.uint8], ggml_type: GGMLType) -> bool:
    """Bit by bit, but that a NaN may have another payload."""
    with np.errstate(all="ignore"):
        expected = numpy_twin.dequantize(data, ggml_type)
    same = got.view(np.uint32) == expected.view(np.uint32)
    return bool((same | (np.isnan(got) & np.isnan(expected))).all())


def _pack(report: Report, what: str, ggml_type: GGMLType, bits: int) -> None:
    out, width = (19, 256) if report.interpret else (4080, 2048)
    form = MarlinFormat(out, width, bits)
    n = out * width // BLOCKS[ggml_type][0]
    data = random_blocks(ggml_type, n, std=1.0, rng=np.random.default_rng(bits))
    expected = torch.zeros(form.n_bytes, dtype=torch.uint8)
    rows = torch.from_numpy(numpy_twin.dequantize(data, ggml_type)).view(out, width)
    pack_rows(rows, 0, expected, form)
    blocks = torch.from_numpy(data).to(report.device)
    got = torch.zeros(form.n_bytes, dtype=torch.uint8, device=report.device)

    def work() -> None:
        pack(blocks, ggml_type, got, first_row=0, shape=(out, width), num_bits=bits)

    work()
    same = torch.equal(got.cpu()[: len(expected)], expected)
    told = rate(report, seconds_of(report, work), blocks.nbytes + got.nbytes, 0)
    report.add(what, f"{_bytes_told(same)}, {told}", same)


def _bytes_told(same: bool) -> str:
    return "the CPU's bytes" if same else "OTHER bytes"
