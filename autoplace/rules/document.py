"""Reads YAML into plain values with their lines, within limits and without building any object.

Only what rule files need: lists, mappings, strings, numbers, booleans, null. A tag that asks for
anything else is a fault, never obeyed.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import yaml

from autoplace.errors import AutoplaceError

MAX_CHARACTERS = 2_000_000
MAX_NODES = 200_000
MAX_DEPTH = 32
MAX_NUMBER = 64
"""Characters of a number: `59:59:…` (base 60) and `0x…` grow far beyond what can be shown."""

_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_scalars = yaml.constructor.SafeConstructor()
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Scalar:
    """A string, number, boolean or null."""

    value: str | int | float | bool | None
    line: int


@dataclass(frozen=True)
class Sequence:
    """A list."""

    items: tuple["Node", ...]
    line: int


@dataclass(frozen=True)
class Mapping:
    """A mapping, in the file's order; keys are scalars, no key twice."""

    items: tuple[tuple[Scalar, "Node"], ...]
    line: int

    def get(self, key: str) -> "Node | None":
        return next((node for scalar, node in self.items if scalar.value == key), None)


Node = Scalar | Sequence | Mapping


class DocumentError(AutoplaceError):
    """The text is not YAML that a rule file may be."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.message = message
        self.line = line


def parse_document(text: str) -> Node | None:
    """The document's value; None for an empty one. Raises `DocumentError`."""
    if len(text) > MAX_CHARACTERS:
        raise DocumentError(
            f"the file has {len(text)} characters, at most {MAX_CHARACTERS} are read"
        )
    try:
        _check_limits(text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DocumentError(
            f"not YAML: {error.problem or error.context}", mark.line + 1 if mark else None
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(f"not YAML: {str(error).splitlines()[0]}") from error
    return None if root is None else _Converter().convert(root)


def _check_limits(text: str) -> None:
    """Walk the events, which is iterative, before anything recursive sees the text."""
    depth = 0
    for count, event in enumerate(_events(text)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        line = event.start_mark.line + 1 if event.start_mark else None
        if depth > MAX_DEPTH:
            raise DocumentError(f"nested over {MAX_DEPTH} levels deep", line)
        if count > 2 * MAX_NODES:
            raise DocumentError(f"over {MAX_NODES} values", line)


def _events(text: str) -> Iterator[yaml.Event]:
    yield from yaml.parse(text, Loader=_Loader)


@dataclass
class _Converter:
    """Turns composed nodes into ours; aliases count each time they are used."""

    count: int = field(default=0)

    def convert(self, node: yaml.Node, depth: int = 0) -> Node:
        line = node.start_mark.line + 1
        self.count += 1
        if self.count > MAX_NODES or depth > MAX_DEPTH:
            raise DocumentError("aliases expand to more than a rule file can hold", line)
        if isinstance(node, yaml.MappingNode):
            self._expect_tag(node, "map", line)
            return Mapping(tuple(self._pairs(node, depth)), line)
        if isinstance(node, yaml.SequenceNode):
            self._expect_tag(node, "seq", line)
            return Sequence(tuple(self.convert(item, depth + 1) for item in node.value), line)
        assert isinstance(node, yaml.ScalarNode)
        return _scalar(node, line)

    def _pairs(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[Scalar, Node]]:
        seen: set[tuple[str, Hashable]] = set()
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == f"{_TAG}merge":
                raise DocumentError("merge keys (<<) are not read; write the keys out", line)
            key = self.convert(key_node, depth + 1)
            if not isinstance(key, Scalar):
                raise DocumentError("a key must be a plain value", line)
            identity = (type(key.value).__name__, key.value)
            if identity in seen:
                raise DocumentError(f"the key {key.value!r} occurs twice", line)
            seen.add(identity)
            yield key, self.convert(value_node, depth + 1)

    @staticmethod
    def _expect_tag(node: yaml.Node, name: str, line: int) -> None:
        if node.tag != f"{_TAG}{name}":
            raise DocumentError(f"the tag {node.tag!r} is not read", line)


def _scalar(node: yaml.ScalarNode, line: int) -> Scalar:
    if node.tag in (f"{_TAG}int", f"{_TAG}float") and len(node.value) > MAX_NUMBER:
        kind = node.tag.removeprefix(_TAG)
        raise DocumentError(
            f"{node.value[:40]!r}… is no {kind} of a rule file: it has {len(node.value)} digits",
            line,
        )
    try:
        match node.tag.removeprefix(_TAG):
            case "str":
                return Scalar(str(node.value), line)
            case "int":
                return Scalar(int(_scalars.construct_yaml_int(node)), line)
            case "float":
                return Scalar(float(_scalars.construct_yaml_float(node)), line)
            case "bool":
                return Scalar(bool(_scalars.construct_yaml_bool(node)), line)
            case "null":
                return Scalar(None, line)
    except (ValueError, KeyError, AttributeError) as error:
        raise DocumentError(
            f"{node.value[:40]!r} is no {node.tag.removeprefix(_TAG)}", line
        ) from error
    raise DocumentError(
        f"{node.value[:40]!r} reads as {node.tag.removeprefix(_TAG)!r}; "
        "quote it if a string is meant",
        line,
    )
