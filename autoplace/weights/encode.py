"""Encodes a GGUF version 3 header.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from autoplace.errors import AutoplaceError
from autoplace.weights.ggml import TensorInfo
from autoplace.weights.header import DEFAULT_ALIGNMENT, MAGIC
from autoplace.weights.metadata import SCALARS, ValueType

_NUMPY_TYPES = {np.dtype(scalar.format): value_type for value_type, scalar in SCALARS.items()}


def encode_header(metadata: Mapping[str, object], tensors: Sequence[TensorInfo]) -> bytes:
    """The header, padded to where the tensors start; they lie in order, each one aligned.

    A Python int is stored as UINT32 (INT32 if negative, 64 bits if too big), a float as FLOAT32, a
    list as an array: INT32, FLOAT32, BOOL or STRING. A numpy scalar or array keeps its own type.
    """
    alignment = alignment_of(metadata)
    parts = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts.append(_text(key))
        parts.append(_value(key, value))
    for info, offset in zip(tensors, tensor_offsets(tensors, alignment), strict=True):
        shape = info.shape[::-1]
        parts.append(_text(info.name))
        parts.append(struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, info.ggml_type, offset))
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment)


def alignment_of(metadata: Mapping[str, object]) -> int:
    """Alignment of the tensors that a file with this metadata has, in bytes."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int), alignment
    return alignment


def tensor_offsets(tensors: Sequence[TensorInfo], alignment: int) -> list[int]:
    """Where each tensor starts, in bytes behind the header."""
    offsets, end = [], 0
    for info in tensors:
        offsets.append(end)
        end += -(-info.n_bytes // alignment) * alignment
    return offsets


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: object) -> bytes:
    """Type code and value."""
    if isinstance(value, str):
        return struct.pack("<I", ValueType.STRING) + _text(value)
    if isinstance(value, list | tuple | np.ndarray):
        return struct.pack("<I", ValueType.ARRAY) + _array(key, value)
    value_type = _scalar_type(key, value)
    return struct.pack("<I", value_type) + SCALARS[value_type].pack(value)


def _scalar_type(key: str, value: object) -> ValueType:
    if isinstance(value, np.generic):
        return _NUMPY_TYPES[value.dtype]
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, int):
        if value < 0:
            return ValueType.INT32 if value >= -(2**31) else ValueType.INT64
        return ValueType.UINT32 if value < 2**32 else ValueType.UINT64
    raise AutoplaceError(
        f"metadata {key!r}: expected a string, number, bool or a list of them but got {value!r}"
    )


def _array(
    key: str, values: Sequence[object] | np.ndarray[tuple[int], np.dtype[np.generic]]
) -> bytes:
    """Element type, length and elements; an empty list counts as one of strings."""
    if all(isinstance(value, str) for value in values):
        head = struct.pack("<IQ", ValueType.STRING, len(values))
        return head + b"".join(_text(str(value)) for value in values)
    array = values if isinstance(values, np.ndarray) else np.array(values)
    if not isinstance(values, np.ndarray) and array.dtype.kind in "iuf":
        array = array.astype(np.int32 if array.dtype.kind in "iu" else np.float32)
    if array.ndim != 1 or array.dtype not in _NUMPY_TYPES:
        raise AutoplaceError(
            f"metadata {key!r}: expected a flat list of strings, numbers or bools but got "
            f"{array.dtype} with shape {array.shape}"
        )
    return struct.pack("<IQ", _NUMPY_TYPES[array.dtype], len(array)) + array.tobytes()
