"""The key/value pairs of a GGUF header, decoded only when asked for.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

import numpy as np

from autoplace.errors import AutoplaceError, did_you_mean


class ValueType(IntEnum):
    """Type codes of GGUF metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
"""How each scalar is stored; everything in the file is little-endian."""

Value = bool | int | float | str | list[object]
"""What a metadata value decodes to."""

Buffer = bytes | mmap.mmap
_Default = TypeVar("_Default")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_MAX_ARRAY_DEPTH = 8
_MAX_NAME_BYTES = 65_535
"""Of keys, as gguf.md has it."""
_MAX_DECODED = 2_000_000
"""Elements of an array that is asked for; vocabularies have some 250,000."""


class MissingKeyError(AutoplaceError, KeyError):
    """A file lacks a metadata key that was asked for."""

    __str__ = Exception.__str__


class Cursor:
    """Reads a header from front to back, and says so in one line where the file ends too early."""

    def __init__(self, buffer: Buffer, path: Path, offset: int = 0) -> None:
        self.buffer = buffer
        self.path = path
        self.offset = offset

    def take(self, n_bytes: int) -> int:
        """Step over `n_bytes` and return where they start."""
        start, end = self.offset, self.offset + n_bytes
        if end > len(self.buffer):
            raise AutoplaceError(
                f"{self.path} is truncated: its header goes on to byte {end} at least, "
                f"but the file ends at {len(self.buffer)}"
            )
        self.offset = end
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self.buffer, self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.buffer, self.take(8))[0])

    def text(self, *, what: str = "a string") -> str:
        length = self.u64()
        start = self.take(length)
        if what != "a string" and length > _MAX_NAME_BYTES:
            raise AutoplaceError(
                f"{self.path} is damaged: expected {what} of at most {_MAX_NAME_BYTES} B "
                f"at byte {start} but it has {length} B"
            )
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise AutoplaceError(
                f"{self.path} is damaged: expected {what} in UTF-8 at byte {start} but got "
                f"{self.buffer[start : start + min(length, 16)]!r}"
            ) from error

    def value_type(self) -> ValueType:
        code = self.u32()
        try:
            return ValueType(code)
        except ValueError as error:
            raise AutoplaceError(
                f"{self.path} is damaged: expected a metadata type from 0 to 12 "
                f"at byte {self.offset - 4} but got {code}"
            ) from error

    def skip_value(self, value_type: ValueType, depth: int = 0) -> None:
        """Step over one value without decoding it."""
        if value_type is ValueType.STRING:
            self.take(self.u64())
        elif value_type is ValueType.ARRAY:
            self._skip_array(depth)
        else:
            self.take(SCALARS[value_type].size)

    def _skip_array(self, depth: int) -> None:
        element_type, length = self.value_type(), self.u64()
        if element_type is ValueType.STRING:
            self._skip_strings(length)
        elif element_type is not ValueType.ARRAY:
            self.take(length * SCALARS[element_type].size)
        elif depth < _MAX_ARRAY_DEPTH:
            for _ in range(length):
                self._skip_array(depth + 1)
        else:
            raise AutoplaceError(
                f"{self.path} is damaged: its metadata nests arrays over {_MAX_ARRAY_DEPTH} deep"
            )

    def _skip_strings(self, length: int) -> None:
        """Step over strings; a vocabulary of 100,000 takes about 15 ms, hence the bare loop."""
        unpack, buffer, offset = _U64.unpack_from, self.buffer, self.offset
        try:
            for _ in range(length):
                offset += 8 + unpack(buffer, offset)[0]
        except (struct.error, OverflowError):
            offset += 8
        self.take(offset - self.offset)

    def value(self, value_type: ValueType) -> Value:
        """Decode one value."""
        if value_type is ValueType.STRING:
            return self.text()
        if value_type is ValueType.ARRAY:
            return self._array()
        scalar = SCALARS[value_type]
        (decoded,) = scalar.unpack_from(self.buffer, self.take(scalar.size))
        return decoded  # type: ignore[no-any-return]

    def _array(self) -> list[object]:
        element_type, length = self.value_type(), self.u64()
        if length > _MAX_DECODED:
            raise AutoplaceError(
                f"{self.path} has an array of {length} elements at byte {self.offset}: "
                f"at most {_MAX_DECODED} are read"
            )
        if element_type in (ValueType.STRING, ValueType.ARRAY):
            return [self.value(element_type) for _ in range(length)]
        scalar = SCALARS[element_type]
        start = self.take(length * scalar.size)
        decoded: list[object] = np.frombuffer(
            self.buffer, np.dtype(scalar.format), length, start
        ).tolist()
        return decoded


class Metadata(Mapping[str, Value]):
    """The metadata of one file. A value is decoded at each request: keep a long array."""

    def __init__(self, buffer: Buffer, path: Path, entries: Mapping[str, tuple[ValueType, int]]):
        self._buffer = buffer
        self._path = path
        self._entries = entries

    def __getitem__(self, key: str) -> Value:
        value_type, offset = self._entry(key)
        return Cursor(self._buffer, self._path, offset).value(value_type)

    def get(self, key: str, default: _Default = None) -> Value | _Default:  # type: ignore[assignment]
        return self[key] if key in self._entries else default

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def value_type(self, key: str) -> ValueType:
        """The type a value is stored with."""
        return self._entry(key)[0]

    def array_length(self, key: str) -> int:
        """Number of elements of an array, without decoding it."""
        value_type, offset = self._entry(key)
        if value_type is not ValueType.ARRAY:
            raise AutoplaceError(
                f"{self._path}: expected {key!r} to be an array but got {value_type.name}"
            )
        return Cursor(self._buffer, self._path, offset + 4).u64()

    def _entry(self, key: str) -> tuple[ValueType, int]:
        try:
            return self._entries[key]
        except KeyError as error:
            hint = did_you_mean(key, self._entries)
            raise MissingKeyError(f"{self._path} has no metadata key {key!r}{hint}") from error


def read_metadata(cursor: Cursor, num_entries: int) -> Metadata:
    """Index the key/value pairs at the cursor; the cursor then stands behind them."""
    entries: dict[str, tuple[ValueType, int]] = {}
    for _ in range(num_entries):
        key = cursor.text(what="a metadata key")
        if key in entries:
            raise AutoplaceError(f"{cursor.path} is damaged: metadata key {key!r} occurs twice")
        value_type = cursor.value_type()
        entries[key] = (value_type, cursor.offset)
        cursor.skip_value(value_type)
    return Metadata(cursor.buffer, cursor.path, entries)
