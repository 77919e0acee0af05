"""The Optuna storage: one SQLite file in WAL mode, and its failures as one clear line each."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import psutil
import sqlalchemy.exc

from autoplace.errors import AutoplaceError

BUSY_TIMEOUT_S = 60.0
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs"}
    | {"gpfs", "9p", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs"}
    | {"fuse.rclone", "fuse.gcsfuse"}
)
"""WAL needs memory shared by all users of the file, so all on one machine (sqlite.org/wal)."""


def open_storage(
    path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> optuna.storages.RDBStorage:
    """Open or create the file. A study that cannot be written is an `AutoplaceError`."""
    refuse_network_file_system(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AutoplaceError(
            f"cannot make the folder {path.parent} for the studies database: {error.strerror}"
        ) from error
    with storage_errors(path), exclusively(path):
        _switch_to_wal(path, busy_timeout_s)
        return optuna.storages.RDBStorage(
            f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": busy_timeout_s}}
        )


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """One driver at a time, by a lock file beside the database; the kernel frees a dead one's.

    For what SQLite's own transactions do not cover: making the tables, and claiming a placement.
    """
    try:
        handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise AutoplaceError(f"cannot use the studies database {path}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _switch_to_wal(path: Path, busy_timeout_s: float) -> None:
    """WAL stays with the file, so that the dashboard may read it while a study writes."""
    connection = sqlite3.connect(path, timeout=busy_timeout_s)
    try:
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise AutoplaceError(
                f"expected a studies database that can be in WAL mode, got {mode} for {path}"
            )
    finally:
        connection.close()


def refuse_network_file_system(path: Path) -> None:
    """Raise if the file would lie on a file system that SQLite cannot lock."""
    file_system = file_system_of(path)
    if file_system in NETWORK_FILE_SYSTEMS:
        raise AutoplaceError(
            f"expected the studies database on a local disk, but {path} is on {file_system}; "
            "give another place with storage.path=PATH"
        )


def file_system_of(path: Path) -> str:
    """Type of the mounted file system that holds `path`, or would: `ext4`, `nfs4`, …"""
    real = path.resolve()
    best = ("", "")
    for partition in psutil.disk_partitions(all=True):
        mount = Path(partition.mountpoint)
        if (mount == real or mount in real.parents) and len(str(mount)) >= len(best[0]):
            best = (str(mount), partition.fstype)
    return best[1]


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite, SQLAlchemy and Optuna raise into one line that names the file."""
    try:
        yield
    except (
        sqlite3.Error,
        sqlalchemy.exc.SQLAlchemyError,
        optuna.exceptions.StorageInternalError,
    ) as error:
        raise AutoplaceError(f"cannot use the studies database {path}: {_reason(error)}") from error


_REASONS = {
    "database is locked": "another process has kept it locked",
    "database or disk is full": "the disk is full",
    "disk i/o error": "the disk is full or failing",
    "readonly database": "it cannot be written",
    "unable to open database file": "it cannot be opened or created there",
    "file is not a database": "it is no SQLite database",
    "malformed": "it is damaged",
}


def _reason(error: BaseException) -> str:
    """The innermost message, in our words where the case is known."""
    chain = [error]
    while (cause := chain[-1].__cause__ or getattr(chain[-1], "orig", None)) is not None:
        chain.append(cause)
    texts = [str(item) for item in chain]
    for text in texts:
        for sign, reason in _REASONS.items():
            if sign in text.lower():
                return reason
    return texts[-1].splitlines()[0] if texts[-1] else type(chain[-1]).__name__
