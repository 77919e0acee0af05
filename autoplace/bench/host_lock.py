"""One measuring trial a machine: a lock that the kernel lets go of when its holder dies."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autoplace.errors import AutoplaceError

POLL_S = 0.5


def lock_path() -> Path:
    """The same for every user and every study of this machine."""
    return Path(os.environ.get("AUTOPLACE_LOCK") or Path(tempfile.gettempdir(), "autoplace.lock"))


@contextmanager
def alone_on_this_host(say: Callable[[str], None], *, path: Path | None = None) -> Iterator[None]:
    """Hold the host's lock, waiting for it as long as it takes; `say` is told once of waiting."""
    path = path or lock_path()
    with open(_open(path), "rb") as file:
        if not _taken(file.fileno()):
            say(f"waiting for another measurement on this machine to end (lock {path.name})")
            while not _taken(file.fileno()):
                time.sleep(POLL_S)
        yield


def _open(path: Path) -> int:
    """Open for any user: a lock needs no write permission, and /tmp refuses O_CREAT to others."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise AutoplaceError(f"cannot open the lock file {path}: {error.strerror}") from error
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise AutoplaceError(f"cannot make the lock file {path}: {error.strerror}") from error


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
