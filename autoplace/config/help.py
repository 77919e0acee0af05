"""`--help`, read from conf/ itself: the comments there are the documentation of the keys."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoplace.config.groups import CONF, choices, default_choices

KEY = re.compile(r"^(?P<indent> *)(?P<key>\w+):(?: (?P<value>.*?))?(?: +# (?P<comment>.*))?$")
EXIT_CODES = (
    "exit codes: 0 done; 1 the answer is no; 2 the request was wrong; 3 a fault of ours; "
    "130 interrupted"
)


@dataclass(frozen=True)
class Key:
    """One key of conf/ with its default and what its comment says."""

    name: str
    default: str
    comment: str


def program_help(commands: Iterable[str]) -> str:
    """What the program does, and its commands with one line each."""
    rows = [(command, _heading(command)[0]) for command in commands]
    return "\n".join(
        [
            "usage: python -m autoplace COMMAND [key=value ...]",
            "",
            "Finds the best way to lay a mixture-of-experts model over the GPUs and the CPU of one",
            "machine, and writes it down as a KTransformers rule file.",
            "",
            "commands:",
            *_table(rows),
            "",
            "`COMMAND --help` lists its keys, groups and examples.",
            EXIT_CODES,
        ]
    )


def command_help(command: str) -> str:
    """A command's keys with defaults, its groups with choices and keys, and examples."""
    summary, *examples = _heading(command)
    own = [
        (f"{key.name}={key.default}", key.comment)
        for source in (f"{command}.yaml", "common.yaml")
        for key in _keys(source)
        if key.name != "defaults" and not (command == "synth" and key.name == "model.path")
    ]
    lines = [
        f"usage: python -m autoplace {command} [key=value ...]",
        "",
        summary,
        "",
        "keys (with their defaults):",
        *_table(own),
        "",
        "groups (GROUP=CHOICE, then GROUP.KEY=VALUE):",
    ]
    for group, default in default_choices(command).items():
        lines.append(f"  {group}={default}")
        lines += _wrapped(", ".join(choices(group)), indent="      choices: ")
        lines += _table(
            [(f"{group}.{key.name}={key.default}", key.comment) for key in _group_keys(group)],
            indent="      ",
        )
    lines += ["", "examples:", *(f"  python -m autoplace {line}" for line in examples), ""]
    return "\n".join([*lines, EXIT_CODES])


def _heading(command: str) -> list[str]:
    """The comment lines on top of the command's file: a summary, then examples."""
    lines = (CONF / f"{command}.yaml").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# ") for line in lines if line.startswith("# ")]


def _group_keys(group: str) -> list[Key]:
    """The keys of a group that have a comment; `name` and what a choice fixes have none."""
    base = CONF / group / "_base.yaml"
    names = ["_base"] if base.exists() else choices(group)
    if len(names) != 1:
        return []
    return [key for key in _keys(f"{group}/{names[0]}.yaml") if key.comment]


def _keys(source: str) -> Iterator[Key]:
    parent = ""
    for line in (CONF / source).read_text(encoding="utf-8").splitlines():
        found = KEY.match(line)
        if found is None:
            continue
        name, value = found["key"], found["value"]
        if value is None:
            parent = f"{name}."
            continue
        parent = parent if found["indent"] else ""
        yield Key(f"{parent}{name}", value, found["comment"] or "")


def _table(rows: list[tuple[str, str]], *, indent: str = "  ") -> list[str]:
    width = max((len(left) for left, _ in rows), default=0)
    return [f"{indent}{left:<{width}}  {right}".rstrip() for left, right in rows]


def _wrapped(text: str, *, indent: str, width: int = 96) -> list[str]:
    lines, line = [], indent
    for word in text.split(" "):
        if len(line) + len(word) > width:
            lines.append(line.rstrip())
            line = " " * len(indent)
        line += f"{word} "
    return [*lines, line.rstrip()]
