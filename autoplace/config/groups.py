"""What stands in conf/: the commands' own files, their groups, and a group's choices."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).parents[1] / "conf"


def choices(group: str) -> tuple[str, ...]:
    """Names that a group can be set to. Files with a leading underscore are shared parts."""
    names = (path.name.removesuffix(".yaml") for path in (CONF / group).glob("*.yaml"))
    return tuple(sorted(name for name in names if not name.startswith("_")))


@cache
def default_choices(command: str) -> dict[str, str]:
    """The groups of a command, each with its default choice, in the order of its file."""
    defaults = _load(CONF / f"{command}.yaml")["defaults"]
    return {
        group: str(choice)
        for entry in defaults
        if isinstance(entry, dict)
        for group, choice in entry.items()
    }


def profile(name: str) -> dict[str, Any]:
    """A hardware profile of conf/hardware with what all of them have."""
    folder = CONF / "hardware"
    merged = {**_load(folder / "_base.yaml"), **_load(folder / f"{name}.yaml")}
    return {key: value for key, value in merged.items() if key != "defaults"}


def _load(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), loader)
    return content
