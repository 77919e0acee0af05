"""Packed weights on disk, by what they were packed from: a trial pays only for what changed."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from autoplace.units import GIB

CACHE_VARIABLE = "AUTOPLACE_CACHE"
DEFAULT_LIMIT_BYTES = 32 * GIB


@dataclass(frozen=True)
class PackedCache:
    """Files named by the hash of a key; the least recently used go when the limit is passed.

    A cache that cannot be written is no error: the weights are packed again the next time.
    """

    folder: Path
    limit_bytes: int = DEFAULT_LIMIT_BYTES

    @classmethod
    def default(cls) -> "PackedCache":
        """`$AUTOPLACE_CACHE`, else `autoplace` in the user's cache folder."""
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        root = Path(os.environ.get(CACHE_VARIABLE) or Path(home) / "autoplace")
        return cls(root / "packed")

    def read(self, key: str, target: Tensor) -> bool:
        """Fill a 1-D uint8 tensor in host memory from the file of a key.

        False where there is no file of its size.
        """
        path = self._path(key)
        try:
            if path.stat().st_size != target.nbytes:
                return False
            with path.open("rb") as file:
                _read_into(file.fileno(), target)
            os.utime(path)
        except OSError:
            return False
        return True

    def store(self, key: str, packed: Tensor) -> None:
        """Write a 1-D uint8 tensor in host memory under a key, atomically, and make room for it."""
        if packed.nbytes > self.limit_bytes:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(packed.nbytes)
            self._write(self._path(key), packed)
        except OSError:
            return

    def _write(self, path: Path, packed: Tensor) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.folder, suffix=".partial")
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(packed.numpy().data)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _make_room(self, n_bytes: int) -> None:
        files = [(path.stat(), path) for path in self.folder.glob("*.bin")]
        files.sort(key=lambda entry: entry[0].st_mtime)
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in files:
            if total + n_bytes <= self.limit_bytes:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.bin"


def _read_into(descriptor: int, target: Tensor) -> None:
    """Read exactly the bytes of a tensor in host memory."""
    view = target.numpy().data
    done = 0
    while done < len(view):
        n = os.readv(descriptor, [view[done:]])
        if n == 0:
            raise OSError("the file ended early")
        done += n
