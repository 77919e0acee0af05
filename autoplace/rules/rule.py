"""One entry of a rule file, and the file: parsed and typed, faults kept for the checker."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplace.placement.assignment import Value


@dataclass(frozen=True)
class Rule:
    """One YAML entry. At least one of `name` and `match_class` is given in a valid file."""

    name: str | None
    """Python regex, searched in the module's path."""
    match_class: str | None
    """Import path; subclasses match too."""
    replace_class: str
    """Import path, or `default`."""
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    recursive: bool = True
    line: int = 0
    """Of the entry in the file, from 1; 0 for a compiled rule."""
    number: int = field(default=0, compare=False)
    """Of the entry in the file, from 1; 0 for a compiled rule."""
