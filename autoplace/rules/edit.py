"""Changes single rules in a file's text: what is not changed keeps its bytes, comments included."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoplace.rules.rule import Rule
from autoplace.rules.write import dump_rules

_DASH = re.compile(r"^(\s*)-(\s|$)")


@dataclass
class Edits:
    """What to change, by a rule's number in the file."""

    replaced: dict[int, Rule | None] = field(default_factory=dict)
    """A rule to write instead; None deletes it."""
    inserted: dict[int, list[Rule]] = field(default_factory=dict)
    """Rules to write in front of one."""
    appended: list[Rule] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.replaced or self.inserted or self.appended)


def edit(text: str, starts: Sequence[int], edits: Edits) -> str:
    """The text with the edits. `starts`: line of each entry, from 1, in the file's order."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    spans = _spans(lines, starts)
    indent = _DASH.match(lines[spans[0][0]]) if spans else None
    margin = indent[1] if indent else ""
    written = lines[: spans[0][0]] if spans else lines
    for number, (start, end) in enumerate(spans, start=1):
        next_start = spans[number][0] if number < len(spans) else len(lines)
        written += _rules(edits.inserted.get(number, ()), margin)
        if number in edits.replaced:
            rule = edits.replaced[number]
            written += _rules([rule], margin) if rule is not None else []
        else:
            written += lines[start:end]
        written += lines[end:next_start]
    return "".join([*written, *_rules(edits.appended, margin)])


def can_edit(text: str, starts: Sequence[int]) -> bool:
    """Whether the list is written as a block, an entry a dash: a flow list cannot be cut."""
    lines = text.splitlines()
    found = [_dash_line(lines, start) for start in starts]
    return all(line is not None for line in found) and len(set(found)) == len(found)


def _dash_line(lines: Sequence[str], start: int) -> int | None:
    """Index of the line with an entry's dash: its own line, or one above where it is empty."""
    for index in range(start - 1, max(-1, start - 4), -1):
        if _DASH.match(lines[index]):
            return index
        if lines[index].strip() and index != start - 1:
            return None
    return None


def _spans(lines: Sequence[str], starts: Sequence[int]) -> list[tuple[int, int]]:
    """First line of each entry and the line after its last; comments between belong to none."""
    firsts = [_dash_line(lines, start) for start in starts]
    assert all(first is not None for first in firsts)
    begins = [first for first in firsts if first is not None]
    spans: list[tuple[int, int]] = []
    if not begins:
        return spans
    for first, after in zip(begins, [*begins[1:], len(lines)], strict=True):
        end = after
        while end > first + 1 and _is_between(lines[end - 1]):
            end -= 1
        spans.append((first, end))
    return spans


def _is_between(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _rules(rules: Sequence[Rule], margin: str) -> list[str]:
    if not rules:
        return []
    return [f"{margin}{line}\n" for line in dump_rules(rules).splitlines()]


def renumbered(rules: Sequence[Rule], edits: Edits) -> Mapping[int, Rule]:
    """The rules as they are after the edits, by their place: for files that cannot be cut."""
    found: list[Rule] = []
    for index, rule in enumerate(rules):
        number = rule.number or index + 1
        found += edits.inserted.get(number, [])
        kept = edits.replaced.get(number, rule)
        found += [kept] if kept is not None else []
    return dict(enumerate([*found, *edits.appended]))
