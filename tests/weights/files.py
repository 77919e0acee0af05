"""Small GGUF files for tests."""

import struct
from collections.abc import Sequence
from pathlib import Path

from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.synthesize import write_gguf

METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "naïve",
    "llama.block_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "a.negative": -7,
    "a.flag": True,
    "tokenizer.ggml.tokens": ["<s>", "", "tödlich"],
    "tokenizer.ggml.token_type": [3, 1, 1],
    "tokenizer.ggml.scores": [0.0, -1.5, 2.5],
    "tokenizer.ggml.flags": [True, False],
}

TENSORS = (
    TensorInfo("token_embd.weight", (3, 32), GGMLType.F16),
    TensorInfo("output_norm.weight", (32,), GGMLType.F32),
    TensorInfo("blk.0.ffn_gate_exps.weight", (4, 5, 64), GGMLType.Q4_0),
    TensorInfo("blk.1.attn_q.weight", (7, 64), GGMLType.Q8_0),
    TensorInfo("blk.1.attn_q.bias", (7,), GGMLType.F32),
)


def write(
    path: Path, tensors: Sequence[TensorInfo] = TENSORS, *, num_shards: int = 1
) -> tuple[Path, ...]:
    return write_gguf(path, metadata=METADATA, tensors=tensors, seed=0, num_shards=num_shards)


def raw_gguf(
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int = 1,
    n_entries: int = 0,
    entries: bytes = b"",
    name: bytes = b"t",
    dims: Sequence[int] = (32,),
    ggml_type: int = 0,
    offset: int = 0,
    data: bytes = bytes(128),
) -> bytes:
    """A file with one tensor, every field of which can be wrong."""
    header = magic + struct.pack("<IQQ", version, n_tensors, n_entries) + entries
    header += struct.pack("<Q", len(name)) + name
    header += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, ggml_type, offset)
    return header + bytes(-len(header) % 32) + data
