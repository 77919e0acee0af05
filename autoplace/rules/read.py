"""Reads a rule file: typed rules with their lines, and every fault with where it stands.

`read_rules` is lenient: it keeps what KTransformers would understand and lists what is wrong, for
`check`. `parse_rules` is strict: any error is refused. Neither imports or executes anything that
the file names.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.placement.assignment import Value
from autoplace.rules import document, vocabulary
from autoplace.rules.finding import Finding, Severity, readable, refuse
from autoplace.rules.header import Header, sha256_of, split_header
from autoplace.rules.number_range import number_range_remedy
from autoplace.rules.pattern import PatternError, compile_pattern
from autoplace.rules.rule import Rule

RULE_KEYS = ("match", "replace", "recursive")
MATCH_KEYS = ("name", "class")
REPLACE_KEYS = ("class", "kwargs")
UNREADABLE = ("not-yaml", "not-a-list")


@dataclass(frozen=True)
class RuleFile:
    """A rule file as read."""

    rules: tuple[Rule, ...]
    header: Header | None
    body: str
    findings: tuple[Finding, ...] = ()
    """What is wrong with the text; empty after `parse_rules`."""
    broken_patterns: Mapping[int, str] = field(default_factory=dict)
    """Number of a rule → its pattern, which does not compile; the rule is not in `rules`."""
    starts: tuple[int, ...] = ()
    """Line of each entry of the list, from 1, rules or not; for editing."""

    @property
    def is_unreadable(self) -> bool:
        """Whether nothing could be read: what the file would mean is unknown then."""
        return any(finding.code in UNREADABLE for finding in self.findings)

    @property
    def is_untouched(self) -> bool:
        """Whether the body still is the one that the header was written for."""
        return self.header is not None and self.header.body_sha256 == sha256_of(self.body)


def load_rules(path: Path) -> RuleFile:
    """Read a rule file from disk, strictly. Raises `AutoplaceError`."""
    return parse_rules(read_text(path), source=str(path))


def read_text(path: Path) -> str:
    """The file's text, line ends as they are. Raises `AutoplaceError`."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise AutoplaceError(f"cannot read the rule file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AutoplaceError(
            f"{path}: expected a rule file in UTF-8, but byte {error.start} is not"
        ) from error


def parse_rules(text: str, *, source: str) -> RuleFile:
    """Rules, header and body. Raises `AutoplaceError` naming source, rule, line and remedy."""
    rule_file = read_rules(text, source=source)
    refuse(rule_file.findings, source=source)
    return rule_file


def read_rules(text: str, *, source: str) -> RuleFile:
    """What can be understood of a rule file, with a finding for every fault of its text.

    Raises `AutoplaceError` only if the header is ours and broken.
    """
    header, body = split_header(text, source=source)
    reader = _Reader(first_line=text.count("\n") - body.count("\n"))
    rules = reader.read(body)
    return RuleFile(
        tuple(rules),
        header,
        body,
        tuple(reader.findings),
        reader.broken_patterns,
        tuple(reader.starts),
    )


@dataclass
class _Reader:
    """Walks the document; a fault becomes a finding, and reading goes on."""

    first_line: int
    findings: list[Finding] = field(default_factory=list)
    number: int | None = None
    broken_patterns: dict[int, str] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)

    def read(self, body: str) -> list[Rule]:
        try:
            root = document.parse_document(body)
        except document.DocumentError as error:
            self._fault("not-yaml", error.message, error.line)
            return []
        if not isinstance(root, document.Sequence):
            line = root.line if root else None
            self._fault("not-a-list", f"expected a list of rules, but got {_kind(root)}", line)
            return []
        rules = []
        for number, node in enumerate(root.items, start=1):
            self.number = number
            self.starts.append(node.line + self.first_line)
            rule = self._rule(node)
            if rule is not None:
                rules.append(rule)
        return rules

    def _fault(
        self, code: str, message: str, line: int | None, remedy: str = "", *, effect: str = ""
    ) -> None:
        self.findings.append(
            Finding(
                Severity.ERROR,
                code,
                readable(message),
                rule=self.number,
                line=line + self.first_line if line else None,
                remedy=remedy,
                effect=effect,
            )
        )

    def _rule(self, node: document.Node) -> Rule | None:
        if not isinstance(node, document.Mapping):
            self._fault(
                "rule-not-a-mapping", f"a rule must be a mapping, not {_kind(node)}", node.line
            )
            return None
        self._check_keys(node, RULE_KEYS, "a rule")
        match = self._section(node, "match")
        name, match_class = self._match(match) if match else (None, None)
        replace = self._section(node, "replace")
        replace_class, kwargs = self._replace(replace) if replace else (None, {})
        recursive = self._recursive(node)
        if (name is None and match_class is None) or replace_class is None:
            return None
        if self.number in self.broken_patterns:
            return None
        line = node.line + self.first_line
        return Rule(name, match_class, replace_class, kwargs, recursive, line, self.number or 0)

    def _check_keys(self, node: document.Mapping, known: tuple[str, ...], what: str) -> None:
        for key, _ in node.items:
            if key.value not in known:
                near = did_you_mean(str(key.value), known)
                self._fault("unknown-key", f"{what} has no key {key.value!r}{near}", key.line)

    def _section(self, node: document.Mapping, key: str) -> document.Mapping | None:
        section = node.get(key)
        if section is None:
            self._fault(f"no-{key}", f"a rule needs {key!r}", node.line)
        elif not isinstance(section, document.Mapping):
            self._fault(
                f"bad-{key}", f"{key!r} must be a mapping, not {_kind(section)}", section.line
            )
        else:
            return section
        return None

    def _match(self, node: document.Mapping) -> tuple[str | None, str | None]:
        self._check_keys(node, MATCH_KEYS, "'match'")
        if node.get("name") is None and node.get("class") is None:
            self._fault("empty-match", "'match' needs 'name' or 'class', or both", node.line)
        return self._name(node.get("name")), self._match_class(node.get("class"))

    def _name(self, node: document.Node | None) -> str | None:
        text = self._string(node, "name")
        if node is None or text is None:
            return None
        try:
            compile_pattern(text)
        except PatternError as error:
            place = "" if error.position is None else f" at character {error.position + 1}"
            self.broken_patterns[self.number or 0] = text
            self._fault(
                "bad-pattern",
                f"the pattern {_short(text)!r}: {error}{place}",
                node.line,
                number_range_remedy(text) or "",
                effect="KTransformers stops with re.error before it loads anything"
                if error.position is not None
                else "",
            )
            return None
        return text

    def _match_class(self, node: document.Node | None) -> str | None:
        text = self._string(node, "class")
        if node is None or text is None:
            return None
        if not vocabulary.is_known_class(text):
            near = _similar(vocabulary.similar_classes(text))
            self._fault(
                "unknown-class", f"'match' names no class known here: {text!r}{near}", node.line
            )
            return None
        return text

    def _replace(self, node: document.Mapping) -> tuple[str | None, dict[str, Value]]:
        self._check_keys(node, REPLACE_KEYS, "'replace'")
        class_node = node.get("class")
        text = "default" if class_node is None else self._string(class_node, "class")
        if class_node is not None and text is not None and not vocabulary.is_injectable(text):
            near = _similar(vocabulary.similar_injectables(text))
            self._fault(
                "unknown-class",
                f"'replace' names no operator known here: {text!r}{near}",
                class_node.line,
                _class_remedy(text),
                effect="KTransformers stops with AttributeError or ModuleNotFoundError",
            )
            text = None
        return text, self._kwargs(node.get("kwargs"), text)

    def _kwargs(self, node: document.Node | None, replace_class: str | None) -> dict[str, Value]:
        if node is None:
            return {}
        if not isinstance(node, document.Mapping):
            self._fault("bad-kwargs", f"'kwargs' must be a mapping, not {_kind(node)}", node.line)
            return {}
        kwargs: dict[str, Value] = {}
        for key, value in node.items:
            name = str(key.value)
            kwargs[name] = _value(value)
            if replace_class is not None:
                self._check_option(replace_class, name, kwargs[name], key.line)
        return kwargs

    def _check_option(self, replace_class: str, name: str, value: Value, line: int) -> None:
        options = vocabulary.options_of(replace_class)
        if name not in options:
            near = did_you_mean(name, options)
            self._fault(
                "unknown-option",
                f"unknown option {name!r}{near}",
                line,
                _rename(name, options),
                effect="KTransformers ignores it without a word, and the default is used",
            )
        else:
            problem = vocabulary.problem_with(name, value)
            if problem and name in vocabulary.DEVICE_OPTIONS:
                self._bad_device(value, line)
            elif problem:
                self._fault("bad-option", f"{name!r} {problem}", line)

    def _bad_device(self, value: Value, line: int) -> None:
        """Whichever option has it, so that one mistake is one finding."""
        digits = re.fullmatch(r"\D*(\d{1,3})", value) if isinstance(value, str) else None
        self._fault(
            "bad-device",
            f"{value!r} is no device: expected cpu or cuda:N",
            line,
            f"write cuda:{digits[1]}" if digits else "write cpu, or cuda:0",
            effect="loading stops: torch knows no such device",
        )

    def _recursive(self, node: document.Mapping) -> bool:
        value = node.get("recursive")
        if value is None:
            return True
        if isinstance(value, document.Scalar) and isinstance(value.value, bool):
            return value.value
        self._fault(
            "bad-recursive",
            f"'recursive' must be true or false, not {_kind(value)}",
            value.line,
            "write recursive: false, unquoted",
            effect="KTransformers takes any text as true, and goes on below the match"
            if isinstance(value, document.Scalar) and isinstance(value.value, str)
            else "KTransformers reads it as Python's bool() does, which the next reader will not",
        )
        return bool(value.value) if isinstance(value, document.Scalar) else bool(value.items)

    def _string(self, node: document.Node | None, key: str) -> str | None:
        if node is None:
            return None
        if isinstance(node, document.Scalar) and isinstance(node.value, str):
            return node.value
        self._fault(f"bad-{key}", f"{key!r} must be a string, not {_kind(node)}", node.line)
        return None


def _value(node: document.Node) -> Value:
    if isinstance(node, document.Scalar):
        return node.value
    if isinstance(node, document.Sequence):
        return tuple(_value(item) for item in node.items)
    return {key.value: _value(value) for key, value in node.items}


def _kind(node: document.Node | None) -> str:
    """What a node is, for a message: `the string 'False'`, `a mapping`."""
    if node is None:
        return "nothing"
    if isinstance(node, document.Sequence):
        return "a list"
    if isinstance(node, document.Mapping):
        return "a mapping"
    if node.value is None:
        return "nothing"
    names = {str: "string", bool: "boolean", int: "number", float: "number"}
    return f"the {names[type(node.value)]} {node.value!r}"


def _class_remedy(text: str) -> str:
    near = list(vocabulary.similar_injectables(text))
    return f"write {near[0]}" if near else "write default, or one of KTransformers' operators"


def _rename(name: str, options: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(options), n=1, cutoff=0.6)
    return f"write {near[0]}" if near else "leave it out"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _similar(near: Collection[str]) -> str:
    return "".join(f"; did you mean {name!r}" for name in near)
