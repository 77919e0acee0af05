"""Weights that are copied out of a file leave none of it in memory."""

from pathlib import Path

import pytest
import torch

from autoplace.hardware.ledger import Ledger
from autoplace.models.allocation import Allocator
from autoplace.models.backend import slow_twin
from autoplace.models.place import HOST
from autoplace.models.source import TensorSource
from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf
from tests.mapped import mapped_bytes_in_memory
from tests.weights.files import METADATA

SHAPE = (8 << 10, 1 << 10)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no smaps of proc(5)")
@pytest.mark.parametrize("by_kernels", [True, False])
def test_a_copied_tensor_gives_the_pages_of_the_file_back(tmp_path: Path, by_kernels: bool) -> None:
    path = tmp_path / "model.gguf"
    info = TensorInfo("weight", SHAPE, GGMLType.Q8_0)
    write_gguf(path, metadata=METADATA, tensors=[info], seed=0)
    gguf = GGUFFile.open(path)
    gguf.data("weight").sum()
    assert mapped_bytes_in_memory(path) > info.n_bytes // 2
    target = torch.empty(SHAPE, dtype=torch.bfloat16)
    source = TensorSource(gguf, info)
    if by_kernels:
        source.fill(target, HOST, Allocator(Ledger({})))
    else:
        with slow_twin():
            source.fill(target, HOST, Allocator(Ledger({})))
    assert mapped_bytes_in_memory(path) < info.n_bytes // 2
    assert target.abs().sum() > 0
