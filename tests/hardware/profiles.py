"""Profiles for tests: the keys of conf/hardware/_base.yaml, with what a test changes."""

from typing import Any

import yaml

from autoplace.hardware.parts import PARTS

HARDWARE = PARTS.parent
NAMES = sorted(
    path.name.removesuffix(".yaml")
    for path in HARDWARE.glob("*.yaml")
    if not path.name.startswith("_")
)


def profile(name: str | None = None, **changes: Any) -> dict[str, Any]:
    """A named profile of conf/hardware merged as Hydra merges it, with a test's changes."""
    merged: dict[str, Any] = yaml.safe_load((HARDWARE / "_base.yaml").read_text())
    if name is not None:
        merged |= yaml.safe_load((HARDWARE / f"{name}.yaml").read_text())
    return merged | changes
