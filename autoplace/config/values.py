"""Checks of single values: each raises `AutoplaceError` that names the key and what came."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoplace.errors import AutoplaceError


def path_of(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()


def needed_path(values: Mapping[str, Any], command: str, key: str) -> Path:
    path = path_of(values[key])
    if path is None:
        raise AutoplaceError(f"{command} needs {key}=FILE")
    return path


def require_folder_name(key: str, name: str | None) -> None:
    """Names of hardware and workload are folders below `study_dir`."""
    if name is not None and (name in ("", ".", "..") or set(name) & set("/\\\0")):
        raise AutoplaceError(f"{key} names a folder, got {name!r}")


def require_one_of(key: str, value: str, known: Sequence[str] | Mapping[str, object]) -> None:
    if value not in known:
        raise AutoplaceError(f"{key} is one of {', '.join(known)}, got {value!r}")


def require_at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise AutoplaceError(f"{key} is at least {least}, got {value}")


def require_not_negative(key: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise AutoplaceError(f"{key} is a number from 0 on, got {value}")


def require_positive(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise AutoplaceError(f"{key} is a positive number, got {value}")
