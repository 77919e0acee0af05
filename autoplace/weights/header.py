"""What the header of one GGUF file says, and whether the file holds what it says.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoplace.errors import AutoplaceError
from autoplace.weights.ggml import BLOCKS, GGMLType, TensorInfo
from autoplace.weights.metadata import Buffer, Cursor, Metadata, read_metadata

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_MAX_DIMS = 4
_MIN_ENTRY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
_MOST = 100_000
"""Entries or tensors of one file: 61 layers of 256 experts, each in tensors of its own, are 47,000.
A hostile file has many small ones, each of which takes far more memory than bytes of the file."""

OTHER_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    40: "NVFP4",
    41: "Q1_0",
}
"""Types of ggml.h that autoplace does not read, for the error that names them."""


@dataclass(frozen=True, eq=False)
class Header:
    """One file's header. `offsets` count from the start of the file, in bytes."""

    version: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    offsets: Mapping[str, int]


def read_header(buffer: Buffer, path: Path) -> Header:
    """Parse the header of a mapped file and check that every tensor lies inside the file."""
    version = _read_version(buffer, path)
    cursor = Cursor(buffer, path, offset=8)
    num_tensors, num_entries = cursor.u64(), cursor.u64()
    _check_count(cursor, num_entries, _MIN_ENTRY_BYTES, "metadata entries")
    metadata = read_metadata(cursor, num_entries)
    _check_count(cursor, num_tensors, _MIN_TENSOR_BYTES, "tensors")
    placed = [_read_tensor(cursor) for _ in range(num_tensors)]
    alignment = _alignment(metadata, path)
    data_start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    offsets: dict[str, int] = {}
    for info, offset in placed:
        if info.name in tensors:
            raise AutoplaceError(f"{path} is damaged: it has tensor {info.name!r} twice")
        if offset % alignment:
            raise AutoplaceError(
                f"{path} is damaged: expected tensor {info.name!r} at a multiple of {alignment} B "
                f"but it is at {offset}"
            )
        _check_inside(info, data_start + offset, len(buffer), path)
        tensors[info.name] = info
        offsets[info.name] = data_start + offset
    return Header(version, metadata, tensors, offsets)


def _read_version(buffer: Buffer, path: Path) -> int:
    magic = bytes(buffer[:4])
    if magic != MAGIC:
        raise AutoplaceError(
            f"{path} is no GGUF file: expected it to start with {MAGIC!r} but got {magic!r}"
        )
    version = Cursor(buffer, path, offset=4).u32()
    if version in VERSIONS:
        return version
    if version & 0xFFFF == 0 and version:
        raise AutoplaceError(
            f"{path} is a big-endian GGUF file: autoplace reads little-endian files only"
        )
    raise AutoplaceError(
        f"{path} has GGUF version {version}: autoplace reads versions 2 and 3 only"
    )


def _check_count(cursor: Cursor, count: int, min_bytes: int, what: str) -> None:
    """Refuse a count that the rest of the file cannot hold before looping over it."""
    rest = len(cursor.buffer) - cursor.offset
    if count * min_bytes > rest:
        raise AutoplaceError(
            f"{cursor.path} is truncated or damaged: its header says {count} {what}, "
            f"but only {rest} B follow"
        )
    if count > _MOST:
        raise AutoplaceError(f"{cursor.path} has {count} {what}: at most {_MOST} are read")


def _read_tensor(cursor: Cursor) -> tuple[TensorInfo, int]:
    name = cursor.text(what="a tensor name")
    num_dims = cursor.u32()
    if not 0 < num_dims <= _MAX_DIMS:
        raise AutoplaceError(
            f"{cursor.path} is damaged: expected tensor {name!r} to have 1 to {_MAX_DIMS} "
            f"dimensions but got {num_dims}"
        )
    shape = tuple(cursor.u64() for _ in range(num_dims))[::-1]
    code = cursor.u32()
    if code not in BLOCKS:
        raise AutoplaceError(
            f"{cursor.path}: tensor {name!r} has the type {OTHER_TYPES.get(code, 'number')} "
            f"({code}), which autoplace does not read; it reads "
            f"{', '.join(known.name for known in GGMLType)}"
        )
    ggml_type = GGMLType(code)
    block_size, _ = BLOCKS[ggml_type]
    if shape[-1] % block_size:
        raise AutoplaceError(
            f"{cursor.path} is damaged: expected rows of {name!r} to be a multiple of "
            f"{block_size} ({ggml_type.name}) but got {shape[-1]}"
        )
    return TensorInfo(name, shape, ggml_type), cursor.u64()


def _alignment(metadata: Metadata, path: Path) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise AutoplaceError(
            f"{path} is damaged: expected general.alignment to be a power of two "
            f"but got {alignment!r}"
        )
    return alignment


def _check_inside(info: TensorInfo, start: int, file_bytes: int, path: Path) -> None:
    end = start + info.n_bytes
    if end > file_bytes:
        raise AutoplaceError(
            f"{path} is truncated: expected tensor {info.name!r} ({info.n_bytes} B) "
            f"to end at byte {end} but the file has {file_bytes} B"
        )
