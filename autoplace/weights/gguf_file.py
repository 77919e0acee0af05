"""A GGUF model on disk, in one file or in shards: its metadata, tensors and mapped bytes."""

import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoplace.errors import AutoplaceError
from autoplace.weights.ggml import TensorInfo
from autoplace.weights.header import Header, read_header
from autoplace.weights.metadata import Metadata

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def shard_path(path: Path, number: int, count: int) -> Path:
    """llama.cpp's name of a shard (from 1): `model.gguf` gives `model-00001-of-00003.gguf`."""
    return path.with_name(f"{path.stem}-{number:05d}-of-{count:05d}.gguf")


@dataclass(frozen=True, eq=False)
class _Shard:
    path: Path
    buffer: mmap.mmap
    header: Header


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """An open GGUF model. Pages are read from the disk when a tensor's bytes are touched."""

    shards: tuple[_Shard, ...]

    @staticmethod
    def open(path: Path) -> "GGUFFile":
        """Open a file or the first of its shards; every fault is one `AutoplaceError`."""
        first = _open_shard(path)
        count = first.header.metadata.get("split.count", 1)
        if not isinstance(count, int) or count <= 1:
            return GGUFFile((first,))
        rest = [_open_shard(other) for other in _other_paths(first, count)]
        gguf = GGUFFile((first, *rest))
        gguf._check_shards(count)
        return gguf

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(shard.path for shard in self.shards)

    @property
    def metadata(self) -> Metadata:
        """The first shard's metadata; the others repeat none but their number."""
        return self.shards[0].header.metadata

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in the files' order."""
        return {name: info for shard in self.shards for name, info in shard.header.tensors.items()}

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors together, without headers and padding."""
        return sum(info.n_bytes for info in self.tensors.values())

    def location(self, name: str) -> tuple[Path, int]:
        """The file that holds a tensor, and where in it the tensor starts, in bytes."""
        shard = self._shard_of[name]
        return shard.path, shard.header.offsets[name]

    def data(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, 1-D, read-only: a view of the memory map, not a copy."""
        shard = self._shard_of[name]
        n_bytes, offset = self.tensors[name].n_bytes, shard.header.offsets[name]
        return np.frombuffer(shard.buffer, np.uint8, n_bytes, offset)

    def release(self, name: str) -> None:
        """Give back a tensor's whole pages to the system; they stay in the page cache.

        A later read maps them again. Does nothing where the system cannot.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        shard, page = self._shard_of[name], mmap.PAGESIZE
        offset = shard.header.offsets[name]
        first = -(-offset // page) * page
        last = (offset + self.tensors[name].n_bytes) // page * page
        if last > first:
            shard.buffer.madvise(mmap.MADV_DONTNEED, first, last - first)

    @cached_property
    def _shard_of(self) -> Mapping[str, _Shard]:
        return {name: shard for shard in self.shards for name in shard.header.tensors}

    def _check_shards(self, count: int) -> None:
        first = self.shards[0].path
        for number, shard in enumerate(self.shards):
            metadata = shard.header.metadata
            came = (metadata.get("split.no"), metadata.get("split.count"))
            if came != (number, count):
                raise AutoplaceError(
                    f"{shard.path} is no shard of {first}: expected split.no {number} and "
                    f"split.count {count} but got {came[0]} and {came[1]}"
                )
        held = sum(len(shard.header.tensors) for shard in self.shards)
        if held != len(self.tensors):
            twice = next(
                n for s in self.shards for n in s.header.tensors if self._shard_of[n] is not s
            )
            raise AutoplaceError(f"the shards of {first} have tensor {twice!r} twice")
        expected = self.metadata.get("split.tensors.count", held)
        if held != expected:
            raise AutoplaceError(
                f"the shards of {first} are not of one model: expected {expected} tensors "
                f"but they hold {held}"
            )


def _open_shard(path: Path) -> _Shard:
    buffer = _map(path)
    return _Shard(path, buffer, read_header(buffer, path))


def _map(path: Path) -> mmap.mmap:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise AutoplaceError(f"{path} is no regular file: expected a GGUF file")
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise AutoplaceError(f"{path} does not exist: expected a GGUF file") from error
    except IsADirectoryError as error:
        found = ", ".join(sorted(inside.name for inside in path.glob("*.gguf"))[:3])
        raise AutoplaceError(
            f"{path} is a directory: expected a GGUF file, or the first of its shards"
            + (f", such as {found} in it" if found else "")
        ) from error
    except ValueError as error:
        raise AutoplaceError(f"{path} is no GGUF file: it is empty") from error
    except OSError as error:
        raise AutoplaceError(f"{path} cannot be read: {error.strerror}") from error


def _other_paths(first: _Shard, count: int) -> list[Path]:
    """Paths of the second and later shards, all of which exist."""
    path, number = first.path, first.header.metadata.get("split.no", 0)
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        raise AutoplaceError(
            f"{path} is one of {count} shards: expected its name to end in "
            f"-00001-of-{count:05d}.gguf, or its siblings cannot be found"
        )
    if int(match["count"]) != count:
        raise AutoplaceError(
            f"{path} is damaged: its name says {int(match['count'])} shards, its header {count}"
        )
    siblings = [
        path.with_name(f"{match['stem']}-{each:05d}-of-{count:05d}.gguf")
        for each in range(1, count + 1)
    ]
    if number != 0 or path != siblings[0]:
        raise AutoplaceError(
            f"{path} is not the first shard: expected {siblings[0].name} but got {path.name}"
        )
    missing = [sibling.name for sibling in siblings if not sibling.exists()]
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise AutoplaceError(
            f"{path} is the first of {count} shards, of which {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: {shown}"
        )
    return siblings[1:]
