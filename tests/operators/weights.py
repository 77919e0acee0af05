"""A file with one linear and one set of experts, and operators made from it."""

from pathlib import Path

import torch
from torch import Tensor

from autoplace.hardware.ledger import Ledger
from autoplace.models.allocation import Allocator
from autoplace.models.place import HOST, Place
from autoplace.models.source import TensorSource
from autoplace.operators.base import OperatorContext
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf

GPU = Place("cuda:0", torch.device("cpu"))
"""Emulated."""
NUM_EXPERTS, WIDTH, HIDDEN = 6, 256, 512


def write_weights(folder: Path, ggml_type: GGMLType) -> GGUFFile:
    """`linear` [320, 512] with a bias, `gate` and `up` [6, 256, 512], `down` [6, 512, 256]."""
    path = folder / f"{ggml_type.name}.gguf"
    tensors = (
        TensorInfo("blk.0.linear.weight", (320, HIDDEN), ggml_type),
        TensorInfo("blk.0.linear.bias", (320,), GGMLType.F32),
        TensorInfo("blk.0.ffn_gate_exps.weight", (NUM_EXPERTS, WIDTH, HIDDEN), ggml_type),
        TensorInfo("blk.0.ffn_up_exps.weight", (NUM_EXPERTS, WIDTH, HIDDEN), ggml_type),
        TensorInfo("blk.0.ffn_down_exps.weight", (NUM_EXPERTS, HIDDEN, WIDTH), ggml_type),
    )
    metadata = {"general.architecture": "llama", "general.alignment": 32}
    write_gguf(path, metadata=metadata, tensors=tensors, seed=3)
    return GGUFFile.open(path)


def linear_sources(gguf: GGUFFile) -> tuple[TensorSource, ...]:
    return _sources(gguf, "linear.weight", "linear.bias")


def experts_sources(gguf: GGUFFile) -> tuple[TensorSource, ...]:
    return _sources(gguf, "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight")


def _sources(gguf: GGUFFile, *names: str) -> tuple[TensorSource, ...]:
    return tuple(TensorSource(gguf, gguf.tensors[f"blk.0.{name}"]) for name in names)


def exact(source: TensorSource) -> Tensor:
    """The dequantised weight, float32."""
    data = source.gguf.data(source.info.name)
    return torch.from_numpy(dequantize(data, source.info.ggml_type)).view(source.info.shape)


def context(
    dtype: torch.dtype, *, gpu: bool, num_bits: int = 4, ledger: Ledger | None = None
) -> OperatorContext:
    place = GPU if gpu else HOST
    return OperatorContext("module", place, dtype, Allocator(ledger or Ledger({})), num_bits)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
