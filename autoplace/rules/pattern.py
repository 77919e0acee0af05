"""Regexes of rule files: compiled only if they cannot run for minutes, and analysed.

Rule files come from the internet and are searched in thousands of module names of up to about
60 characters, by Python's backtracking `re`, which has no time limit. So a pattern is refused
before it runs if it is one of the kinds that can take long on such names: a repeat inside a repeat
whose inner part can match one text in several ways (exponential), too many unbounded repeats in a
row (a high power of the length), or a huge lower bound. `match.assign` also stops after a total
time, for what slips through.
"""

import importlib
import re
import warnings
from functools import lru_cache
from typing import Any

MAX_LENGTH = 10_000
MAX_UNBOUNDED_REPEATS = 5
"""60 characters, five repeats: at most about 60⁶/6! = 65 million steps, unanchored."""
MAX_MINIMUM = 10_000
"""Of repeat counts multiplied: `(?:){1000000}` matches nothing a million times."""

_MANY = 5
"""Up to so many repetitions of an ambiguous part are harmless."""

# CPython's own parser of patterns; private since 3.11, where `sre_parse` is deprecated.
_parser: Any = importlib.import_module("re._parser")

_ATOMIC = ("ASSERT", "ASSERT_NOT", "ATOMIC_GROUP", "POSSESSIVE_REPEAT")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
_DIGITS = frozenset(map(ord, "0123456789"))


class PatternError(ValueError):
    """A pattern that is no regex, or one that is refused. `position` counts characters from 0."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


@lru_cache(maxsize=4096)
def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a rule's name pattern. Raises `PatternError`."""
    if len(text) > MAX_LENGTH:
        raise PatternError(f"the pattern has {len(text)} characters, at most {MAX_LENGTH} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _parser.parse(text)
            _refuse_runaway(tree)
            return re.compile(text)
    except re.error as error:
        raise PatternError(error.msg, error.pos) from error
    except (RecursionError, OverflowError) as error:
        raise PatternError("the pattern is nested too deeply or repeats too often") from error


def _refuse_runaway(tree: Any) -> None:
    if _unbounded(tree) > MAX_UNBOUNDED_REPEATS:
        raise PatternError(
            f"the pattern has over {MAX_UNBOUNDED_REPEATS} unbounded repeats in a row "
            "and could run for minutes"
        )
    if _minimum(tree) > MAX_MINIMUM:
        raise PatternError("the pattern repeats too often")
    if _has_runaway_repeat(tree):
        raise PatternError(
            "the pattern repeats a part that itself can match one text in several ways "
            "and could run for minutes"
        )


def _parts(tree: Any) -> list[tuple[str, Any]]:
    """Opcode names and arguments of a sequence."""
    return [(str(opcode), argument) for opcode, argument in tree]


def _inner(opcode: str, argument: Any) -> list[Any]:
    """The sequences below a node."""
    if opcode in _REPEATS or opcode == "POSSESSIVE_REPEAT":
        return [argument[2]]
    if opcode == "SUBPATTERN":
        return [argument[3]]
    if opcode == "BRANCH":
        return list(argument[1])
    if opcode in ("ASSERT", "ASSERT_NOT"):
        return [argument[1]]
    if opcode == "ATOMIC_GROUP":
        return [argument]
    if opcode == "GROUPREF_EXISTS":
        return [branch for branch in argument[1:] if branch is not None]
    return []


def _is_open(opcode: str, argument: Any) -> bool:
    """A repeat that backtracking can try many lengths of."""
    return opcode in _REPEATS and argument[1] - argument[0] >= _MANY


def _unbounded(tree: Any) -> int:
    """Unbounded repeats that can be tried one after the other, on the worst path.

    What a look-around or an atomic group found is not tried again by what follows it.
    """
    total = worst = 0
    for opcode, argument in _parts(tree):
        below = max((_unbounded(inner) for inner in _inner(opcode, argument)), default=0)
        worst = max(worst, total + below)
        if opcode not in _ATOMIC:
            total += below + _is_open(opcode, argument)
    return max(worst, total)


def _minimum(tree: Any) -> int:
    """Steps that must be taken to match at all."""
    total = 1
    for opcode, argument in _parts(tree):
        below = max((_minimum(inner) for inner in _inner(opcode, argument)), default=1)
        total += (
            max(1, argument[0]) * below if opcode in (*_REPEATS, "POSSESSIVE_REPEAT") else below
        )
    return total


def _has_runaway_repeat(tree: Any) -> bool:
    for opcode, argument in _parts(tree):
        if opcode in _REPEATS and argument[1] > _MANY and _is_ambiguous(argument[2]):
            return True
        if any(_has_runaway_repeat(inner) for inner in _inner(opcode, argument)):
            return True
    return False


def _is_ambiguous(tree: Any) -> bool:
    """Whether one text may match in several ways or lengths; never missed, at times imagined."""
    for opcode, argument in _parts(tree):
        if opcode in _REPEATS and argument[0] != argument[1]:
            return True
        if opcode == "BRANCH" and not _starts_differ(argument[1]):
            return True
        if opcode in _ATOMIC:
            continue
        if any(_is_ambiguous(inner) for inner in _inner(opcode, argument)):
            return True
    return False


def _starts_differ(branches: Any) -> bool:
    """Whether the first literal already tells the alternatives apart."""
    starts = []
    for branch in branches:
        parts = _parts(branch)
        if not parts or parts[0][0] != "LITERAL":
            return False
        starts.append(parts[0][1])
    return len(set(starts)) == len(starts)


@lru_cache(maxsize=4096)
def is_blind_to_experts(text: str) -> bool:
    """Whether the pattern surely matches all experts of a layer alike, or none.

    True if nothing in it can read a digit of the expert's index: it holds no digit, no character
    class and no counted repeat, except in a leading `^model.layers.(layer numbers).`, which can
    only read the layer's. `.*` is harmless. False means only that every expert must be asked.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _is_blind(_parts(_parser.parse(text)), at_start=True)


def _is_blind(parts: list[tuple[str, Any]], *, at_start: bool) -> bool:
    if at_start:
        parts = _without_layer_prefix(parts)
        if len(parts) == 1 and parts[0][0] in ("SUBPATTERN", "BRANCH"):
            return all(_is_blind(_parts(inner), at_start=True) for inner in _inner(*parts[0]))
    return all(_is_blind_part(opcode, argument) for opcode, argument in parts)


def _is_blind_part(opcode: str, argument: Any) -> bool:
    if opcode == "LITERAL":
        return bool(argument not in _DIGITS)
    if opcode == "AT":
        return str(argument) in ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING")
    if opcode in _REPEATS and argument[0] == 0 and argument[1] > MAX_LENGTH:
        inner = _parts(argument[2])
        return len(inner) == 1 and inner[0][0] == "ANY"
    if opcode in ("SUBPATTERN", "BRANCH"):
        flags = opcode == "SUBPATTERN" and (argument[1] or argument[2])
        return not flags and all(
            _is_blind(_parts(inner), at_start=False) for inner in _inner(opcode, argument)
        )
    if opcode in ("ASSERT", "ASSERT_NOT") and argument[0] == 1:
        return _is_blind(_parts(argument[1]), at_start=False)
    return False


_PREFIX = [("AT", None), *(("LITERAL", ord(letter)) for letter in "model.layers.")]


def _without_layer_prefix(parts: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Drop `^model\\.layers\\.<digits>\\.` from the start, if it stands there."""
    end = len(_PREFIX)
    if len(parts) < end + 2 or str(parts[0][1]) != "AT_BEGINNING":
        return parts
    if parts[1:end] != _PREFIX[1:] or parts[end + 1] != ("LITERAL", ord(".")):
        return parts
    return parts[end + 2 :] if _reads_only_digits([parts[end]]) else parts


def _reads_only_digits(parts: list[tuple[str, Any]]) -> bool:
    for opcode, argument in parts:
        if opcode == "LITERAL":
            if argument not in _DIGITS:
                return False
        elif opcode == "IN":
            if not all(_is_digit_item(str(kind), item) for kind, item in argument):
                return False
        elif opcode in (*_REPEATS, "SUBPATTERN", "BRANCH"):
            if not all(_reads_only_digits(_parts(inner)) for inner in _inner(opcode, argument)):
                return False
        else:
            return False
    return True


def _is_digit_item(kind: str, item: Any) -> bool:
    if kind == "LITERAL":
        return bool(item in _DIGITS)
    if kind == "RANGE":
        return bool(ord("0") <= item[0] and item[1] <= ord("9"))
    return kind == "CATEGORY" and str(item) == "CATEGORY_DIGIT"
