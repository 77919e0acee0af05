"""The studies database: WAL, and one clear line for everything that keeps it from being used."""

import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import optuna
import psutil
import pytest

from autoplace.errors import AutoplaceError
from autoplace.tuner.storage import open_storage, refuse_network_file_system, storage_errors


def test_the_database_is_in_wal_mode_with_a_busy_timeout_of_a_minute(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "studies.db")
    with storage.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 60_000


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    open_storage(tmp_path / "a" / "b" / "studies.db")
    assert (tmp_path / "a" / "b" / "studies.db").exists()


def test_a_file_in_the_way_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "studies").write_text("")
    with pytest.raises(AutoplaceError, match=r"cannot make the folder .*studies.*: "):
        open_storage(tmp_path / "studies" / "studies.db")


def test_a_folder_in_the_way_of_the_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "studies.db").mkdir()
    with pytest.raises(AutoplaceError, match=r"it cannot be opened or created there$"):
        open_storage(tmp_path / "studies.db")


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "studies.db").write_bytes(b"GGUF" * 1000)
    with pytest.raises(AutoplaceError, match=r"it is no SQLite database$"):
        open_storage(tmp_path / "studies.db")


def test_a_locked_database_is_one_line_after_the_timeout_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    storage = open_storage(path, busy_timeout_s=0.05)
    study = optuna.create_study(storage=storage, study_name="s")
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    with pytest.raises(AutoplaceError) as caught, storage_errors(path):
        study.set_user_attr("key", "value")
    assert time.monotonic() - started >= 0.05
    other.rollback()
    other.close()
    assert str(caught.value) == (
        f"cannot use the studies database {path}: another process has kept it locked"
    )
    with storage_errors(path):
        study.tell(study.ask(), 1.0)
    assert len(study.trials) == 1


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk; the limit is per process, so it has its own."""
    script = f"""
import resource, signal, sys
from pathlib import Path
import optuna
from autoplace.errors import AutoplaceError
from autoplace.tuner.storage import open_storage, storage_errors
optuna.logging.set_verbosity(optuna.logging.WARNING)
path = Path({str(tmp_path / "studies.db")!r})
storage = open_storage(path)
study = optuna.create_study(storage=storage)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    with storage_errors(path):
        for _ in range(30):
            trial = study.ask()
            trial.set_user_attr("rules", "x" * 100_000)
            study.tell(trial, 1.0)
except AutoplaceError as error:
    sys.exit(str(error))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stderr.strip().splitlines()[-1].endswith("the disk is full or failing") or (
        ended.stderr.strip().endswith("the disk is full")
    )


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network mount can be made here, so the list of mounts is the one thing replaced."""
    mounts = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(tmp_path.resolve()), fstype="nfs4"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    with pytest.raises(AutoplaceError, match=r"on a local disk, but .* is on nfs4"):
        refuse_network_file_system(tmp_path / "studies" / "studies.db")
    refuse_network_file_system(tmp_path.parent / "studies.db")
