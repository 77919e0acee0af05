"""Writes GGUF files with a real model's header and random weights, or a hole in their place."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from autoplace.errors import AutoplaceError
from autoplace.units import format_bytes
from autoplace.weights.encode import alignment_of, encode_header
from autoplace.weights.ggml import TensorInfo
from autoplace.weights.gguf_file import shard_path
from autoplace.weights.random_weights import RandomWeights, Surroundings

Progress = Callable[[int, int], None]
"""Called with the tensor bytes done and their total."""


def write_gguf(
    path: Path,
    *,
    metadata: Mapping[str, object],
    tensors: Sequence[TensorInfo],
    seed: int,
    sparse: bool = False,
    num_shards: int = 1,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Write a model and return its paths, the first shard first.

    `sparse` writes the header and a hole (all weights zero) that takes no room on the disk.
    `num_shards` over 1 gives `stem-00001-of-0000N.gguf` and so on. Files appear under their names
    when all are complete; a failure leaves nothing behind and is an `AutoplaceError`.
    """
    shards = _split(tensors, num_shards)
    paths = [
        path if num_shards == 1 else shard_path(path, number, num_shards)
        for number in range(1, num_shards + 1)
    ]
    alignment = alignment_of(metadata)
    weights = None if sparse else RandomWeights(seed, Surroundings.of(tensors))
    total = sum(info.n_bytes for info in tensors)
    report = _counter(progress, total)
    with _atomic(paths, needed_bytes=0 if sparse else total) as partials:
        for number, (partial, shard) in enumerate(zip(partials, shards, strict=True)):
            header = encode_header(_shard_metadata(metadata, number, num_shards, tensors), shard)
            with partial.open("wb") as file:
                file.write(header)
                for info in shard:
                    _write_tensor(file, info, weights, alignment, report)
                file.truncate()
    return tuple(paths)


def _write_tensor(
    file: BinaryIO,
    info: TensorInfo,
    weights: RandomWeights | None,
    alignment: int,
    report: Callable[[int], None],
) -> None:
    """Write one tensor and its padding; without weights only step over them."""
    padding = -info.n_bytes % alignment
    if weights is None:
        file.seek(info.n_bytes + padding, os.SEEK_CUR)
        report(info.n_bytes)
        return
    for piece in weights.pieces(info):
        file.write(piece.data)
        report(len(piece))
    file.write(bytes(padding))


def _counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    """A function that adds up bytes and passes the sum on."""
    done = 0

    def report(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress is not None:
            progress(done, total)

    return report


def _split(tensors: Sequence[TensorInfo], num_shards: int) -> list[list[TensorInfo]]:
    """Tensors in order, over shards of about equal bytes, none of which is empty."""
    if not 1 <= num_shards <= max(1, len(tensors)):
        raise AutoplaceError(
            f"expected 1 to {len(tensors)} shards, one tensor each at least, but got {num_shards}"
        )
    total, done = sum(info.n_bytes for info in tensors), 0
    shards: list[list[TensorInfo]] = [[]]
    for position, info in enumerate(tensors):
        to_come = num_shards - len(shards)
        is_due = done * num_shards >= total * len(shards) or len(tensors) - position <= to_come
        if shards[-1] and to_come and is_due:
            shards.append([])
        shards[-1].append(info)
        done += info.n_bytes
    return shards


def _shard_metadata(
    metadata: Mapping[str, object], number: int, num_shards: int, tensors: Sequence[TensorInfo]
) -> dict[str, object]:
    """The first shard has the model's metadata; all have the keys that llama.cpp joins them by."""
    if num_shards == 1:
        return dict(metadata)
    split: dict[str, object] = {
        "split.no": np.uint16(number),
        "split.count": np.uint16(num_shards),
        "split.tensors.count": np.int32(len(tensors)),
    }
    if number == 0:
        return {**metadata, **split}
    kept = {"general.alignment"} & set(metadata)
    return {**{key: metadata[key] for key in kept}, **split}


@contextmanager
def _atomic(paths: Sequence[Path], *, needed_bytes: int) -> Iterator[list[Path]]:
    """Temporary paths beside the final ones, renamed at the end or removed."""
    partials = [path.with_name(f".{path.name}.{os.getpid()}.partial") for path in paths]
    try:
        _refuse_early(paths, needed_bytes)
        yield partials
        for partial, path in zip(partials, paths, strict=True):
            partial.replace(path)
    except OSError as error:
        raise AutoplaceError(_explain(error, paths[0], needed_bytes)) from error
    finally:
        for partial in partials:
            with suppress(OSError):
                partial.unlink()


def _refuse_early(paths: Sequence[Path], needed_bytes: int) -> None:
    """Raise what would otherwise come up when the work is done."""
    if needed_bytes > shutil.disk_usage(paths[0].parent).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for path in paths:
        if path.is_dir():
            raise AutoplaceError(f"cannot write {path}: expected a file name but it is a directory")


def _explain(error: OSError, path: Path, needed_bytes: int) -> str:
    if error.errno == errno.ENOSPC:
        free_bytes = shutil.disk_usage(path.parent).free
        return (
            f"cannot write {path}: it needs {format_bytes(needed_bytes)} "
            f"but the disk has {format_bytes(free_bytes)} free"
        )
    if error.errno == errno.ENOENT:
        return f"cannot write {path}: expected {path.parent} to be a directory that exists"
    return f"cannot write {path} ({format_bytes(needed_bytes)}): {os.strerror(error.errno or 0)}"
