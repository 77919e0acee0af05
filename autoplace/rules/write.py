"""Writes rules as the body of a rule file: the same rules always give the same bytes."""

import math
from collections.abc import Iterator, Mapping, Sequence

from autoplace.placement.assignment import Value
from autoplace.rules.rule import Rule


def dump_rules(rules: Sequence[Rule]) -> str:
    """The YAML body. Strings are single-quoted, so that backslashes stand as they are."""
    if not rules:
        return "[]\n"
    return "".join(f"{line}\n" for rule in rules for line in _rule_lines(rule))


def _rule_lines(rule: Rule) -> Iterator[str]:
    yield "- match:"
    if rule.name is not None:
        yield f"    name: {_scalar(rule.name)}"
    if rule.match_class is not None:
        yield f"    class: {_scalar(rule.match_class)}"
    yield "  replace:"
    yield f"    class: {_scalar(rule.replace_class)}"
    if rule.kwargs:
        yield "    kwargs:"
        for key, value in rule.kwargs.items():
            yield from _entry_lines(key, value, indent=6)
    if not rule.recursive:
        yield "  recursive: false"


def _entry_lines(key: Value, value: Value, *, indent: int) -> Iterator[str]:
    head = f"{' ' * indent}{_key(key)}:"
    if isinstance(value, Mapping) and value:
        yield head
        for inner_key, inner in value.items():
            yield from _entry_lines(inner_key, inner, indent=indent + 2)
    else:
        yield f"{head} {_flow(value)}"


def _key(key: Value) -> str:
    if isinstance(key, str) and key.isidentifier() and key.lower() not in _WORDS:
        return key
    return _scalar(key)


def _flow(value: Value) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _scalar(value)


_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Plain words that YAML 1.1 does not read as strings."""


def _scalar(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    assert isinstance(value, str), value
    if value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return '"' + "".join(_escape(character) for character in value) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _float(value: float) -> str:
    """YAML 1.1 wants a point before an exponent, and the exponent's sign."""
    if math.isinf(value) or math.isnan(value):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}[str(value)]
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa
    point = "" if "." in mantissa else ".0"
    sign = "" if exponent[0] in "+-" else "+"
    return f"{mantissa}{point}e{sign}{exponent}"
