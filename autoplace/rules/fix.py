"""Writes a corrected rule file: faults with one right answer are mended, and it is made to fit."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from autoplace.architectures.spec import Module, Role
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import ModuleAssignment
from autoplace.placement.remedies import smallest_changes
from autoplace.placement.situation import Situation
from autoplace.rules.edit import Edits, can_edit, edit, renumbered
from autoplace.rules.finding import Severity, merge
from autoplace.rules.lint import Examined, examine
from autoplace.rules.number_range import mend_number_ranges
from autoplace.rules.read import read_rules
from autoplace.rules.rule import Rule
from autoplace.rules.subject import Subject, homes_of
from autoplace.rules.vocabulary import wrapped_kind
from autoplace.rules.wanted import Mender, Wanted, relevant
from autoplace.rules.write import dump_rules


class CannotMendError(AutoplaceError):
    """What is left has no one right answer: the author must say what is meant."""

    exit_code = 1


_ROUNDS = 4
_TWO_DIGITS = re.compile(r"\[0-(\d)\]\[0-9\]")


def fix(path: Path, examined: Examined, situation: Situation) -> str:
    """Write the corrected file and return its text. Raises `AutoplaceError` if it stays faulty."""
    text = fixed_text(examined, situation)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise AutoplaceError(f"cannot write the rule file {path}: {error.strerror}") from error
    return text


def fixed_text(examined: Examined, situation: Situation) -> str:
    """The corrected text: it checks clean, and the smallest change is applied if it did not fit."""
    mended = mend(examined, situation)
    found = replace(
        situation,
        assignment=mended.assignment,
        homes=homes_of(mended.assignment, situation.spec),
    )
    if found.over:
        changes = [change for change in smallest_changes(found) if change.changes_rules]
        if changes:
            mended = _with_change(mended, found, changes[0].after)
    return mended.file.body


def mend(examined: Examined, situation: Situation) -> Examined:
    """The file without errors and warnings. Raises `AutoplaceError` for what has no one answer."""
    current = _examined_again(_mended_text(examined), situation)
    for _ in range(_ROUNDS):
        if current.is_clean:
            return current
        edits = _edits(current, situation)
        if not edits:
            break
        current = _applied(current, edits, situation)
    if current.is_clean:
        return current
    left = [finding for finding in current.findings if finding.severity is not Severity.ADVICE]
    raise CannotMendError(f"fix cannot mend this by itself: {left[0]}")


def _mended_text(examined: Examined) -> str:
    """Number ranges and unquoted booleans, in the text itself; an own header is no longer true."""
    lines = examined.file.body.splitlines(keepends=True)
    shift = (examined.file.starts[0] - _first_start(examined)) if examined.file.starts else 0
    for finding in examined.findings:
        for number in finding.all_rules:
            start, end = _extent(examined, number, shift, len(lines))
            for index in range(start, end):
                lines[index] = _mended_line(lines[index], finding.code, finding.message)
    return "".join(lines)


def _first_start(examined: Examined) -> int:
    again = read_rules(examined.file.body, source="")
    return again.starts[0] if again.starts else 1


def _extent(examined: Examined, number: int, shift: int, num_lines: int) -> tuple[int, int]:
    starts = [start - shift for start in examined.file.starts]
    if number > len(starts):
        return 0, 0
    return starts[number - 1] - 1, starts[number] - 1 if number < len(starts) else num_lines


def _mended_line(line: str, code: str, message: str) -> str:
    if code in ("number-range", "bad-pattern"):
        return mend_number_ranges(line)
    if code == "bad-recursive":
        word = r"(true|false|no|yes|off|on|n|y|0|1)\b"
        return re.sub(rf"recursive:\s*(['\"]?){word}\1", _boolean, line, flags=re.IGNORECASE)
    if code == "unmatched" and "two-digit" in message:
        return _TWO_DIGITS.sub(r"[0-\1]?[0-9]", line)
    return line


def _boolean(match: "re.Match[str]") -> str:
    return (
        f"recursive: {'true' if match[2].lower() in ('true', 'yes', 'on', 'y', '1') else 'false'}"
    )


def _examined_again(text: str, situation: Situation) -> Examined:
    return examine(
        read_rules(text, source="the mended rules"),
        situation.spec,
        engine=situation.assignment.engine,
        machine=situation.machine,
    )


def _edits(current: Examined, situation: Situation) -> Edits:
    subject = Subject(
        current.assignment,
        situation.spec,
        situation.machine,
        current.file.rules,
        merge(current.file.findings),
    )
    pairs = relevant(situation.spec.modules, Mender(subject))
    edits = _edits_for(current, pairs)
    used = {entry.rule for entry in current.assignment.modules.values()}
    for index, rule in enumerate(current.file.rules):
        if index not in used:
            edits.replaced[_number(rule, index)] = None
    return edits


def _edits_for(current: Examined, pairs: Iterable[tuple[Module, Wanted]]) -> Edits:
    """A rule whose modules all change alike is changed; else rules are written in front of it."""
    edits = Edits()
    changed: dict[int | None, dict[tuple[object, ...], list[tuple[Module, Wanted]]]] = {}
    kept: set[int | None] = set()
    for module, wanted in pairs:
        entry = current.assignment.modules.get(module.path)
        index = current.assignment.rule_of(module.path)
        if entry is not None and _is_right(current, entry, wanted):
            kept.add(index)
        else:
            groups = changed.setdefault(index, defaultdict(list))
            groups[wanted.key].append((module, wanted))
    for index, groups in changed.items():
        _change_rule(edits, current, index, list(groups.values()), index in kept)
    return edits


def _is_right(current: Examined, entry: ModuleAssignment, wanted: Wanted) -> bool:
    if entry.rule is None:
        is_plain = wanted.replace_class == "default"
        return is_plain and wanted.kwargs["generate_device"] == entry.device
    rule = current.file.rules[entry.rule]
    same = (entry.class_name or "default") == wanted.replace_class
    if wanted.replace_class != "default":
        return (
            same
            and dict(entry.kwargs) == dict(wanted.kwargs)
            and (
                rule.recursive == wanted.recursive
                or wrapped_kind(wanted.replace_class) != "experts"
            )
        )
    return same and all(entry.kwargs.get(key) == value for key, value in wanted.kwargs.items())


def _change_rule(
    edits: Edits,
    current: Examined,
    index: int | None,
    groups: list[list[tuple[Module, Wanted]]],
    keeps_some: bool,
) -> None:
    rules = current.file.rules
    if index is None:
        edits.appended += [rule for group in groups for rule in _rules_for(group)]
        return
    number = _number(rules[index], index)
    if len(groups) == 1 and not keeps_some and _is_alone(rules[index], groups[0]):
        wanted = groups[0][0][1]
        edits.replaced[number] = replace(
            rules[index],
            replace_class=wanted.replace_class,
            kwargs=dict(wanted.kwargs),
            recursive=wanted.recursive if wrapped_kind(wanted.replace_class) else True,
        )
    else:
        edits.inserted[number] = [rule for group in groups for rule in _rules_for(group)]


def _is_alone(rule: Rule, group: Sequence[tuple[Module, Wanted]]) -> bool:
    """A rule that ends the walk at the modules themselves, or that does not end it."""
    return rule.recursive or all(module.role is Role.EXPERTS for module, _ in group)


def _rules_for(group: Sequence[tuple[Module, Wanted]]) -> list[Rule]:
    """Anchored rules for modules that want the same."""
    wanted = group[0][1]
    layers: dict[str, list[int]] = defaultdict(list)
    rest: list[str] = []
    for module, _ in group:
        if module.layer is None:
            rest.append(module.path)
        else:
            layers[module.path.removeprefix(f"model.layers.{module.layer}.")].append(module.layer)
    patterns = [f"^{_escaped(path)}$" for path in rest]
    names: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, numbers in layers.items():
        names[tuple(sorted(numbers))].append(name)
    for common, tails in names.items():
        tail = "|".join(_escaped(name) for name in tails)
        tail = f"(?:{tail})" if len(tails) > 1 else tail
        patterns.append(rf"^model\.layers\.(?:{'|'.join(map(str, common))})\.{tail}$")
    return [
        Rule(pattern, None, wanted.replace_class, dict(wanted.kwargs), wanted.recursive)
        for pattern in patterns
    ]


def _escaped(path: str) -> str:
    return path.replace(".", r"\.")


def _number(rule: Rule, index: int) -> int:
    return rule.number or index + 1


def _applied(current: Examined, edits: Edits, situation: Situation) -> Examined:
    """The text after the edits; a list that cannot be cut is written anew."""
    body, starts = current.file.body, current.file.starts
    if can_edit(body, starts) and not current.file.header:
        text = edit(body, starts, edits)
    else:
        text = dump_rules(list(renumbered(current.file.rules, edits).values()))
    return _examined_again(text, situation)


def _with_change(mended: Examined, before: Situation, after: Situation) -> Examined:
    """The file with the change that makes it fit, written as rules."""
    pairs = []
    for module in before.spec.modules:
        old = before.assignment.modules.get(module.path)
        new = after.assignment.modules.get(module.path)
        if new is not None and new != old:
            recursive = wrapped_kind(new.class_name) != "experts"
            pairs.append((module, Wanted(new.class_name or "default", new.kwargs, recursive)))
    changed = {module.path for module, _ in pairs}
    same = [
        (module, Wanted(entry.class_name or "default", entry.kwargs, _recursive(mended, entry)))
        for module in before.spec.modules
        if module.path not in changed
        and (module.tensors or module.role in (Role.ATTENTION, Role.ROTARY, Role.MLP))
        and (entry := before.assignment.modules.get(module.path)) is not None
        and entry.rule is not None
    ]
    result = _applied(mended, _edits_for(mended, [*pairs, *same]), before)
    return mend(result, after)


def _recursive(current: Examined, entry: ModuleAssignment) -> bool:
    return entry.rule is None or current.file.rules[entry.rule].recursive
