"""llama-server's preset file (`--models-preset`): arguments by name, for a team to commit.

Source: llama.cpp b9993, common/preset.cpp (`parse_ini_from_file`: `[name]`, `key = value`, comments
from `;` or `#` on, in values too; keys are any spelling of an option without its dashes, or its
environment variable; `[*]` is for all) and tools/server/README.md. No path is written: llama-server
finds the model of a section by its name in `--models-dir`.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.options import BY_NAME, COMMON_WORDS, ENVIRONMENT
from autoplace.export.llama_cpp.other_options import SWITCHES, VALUED
from autoplace.export.llama_cpp.parse import parse_args
from autoplace.rules.header import Header, render_file

GLOBAL = "*"
_SECTION = re.compile(r"\[([^\]]+)\]\s*(?:[;#].*)?")
_PAIR = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*=[ \t]*((?:(?!\s*[;#]).)*?)\s*(?:[;#].*)?")
_SECRET = frozenset({"--api-key", "--hf-token", "-hft", "--api-key-file"})
_OWN_KEYS = frozenset({"version", "load-on-startup", "stop-timeout"})
"""Of preset files alone."""


def preset_body(name: str, args: LlamaCppArgs) -> str:
    """One section. Raises `AutoplaceError` for what a preset cannot hold."""
    lines = ["version = 1", "", f"[{name}]"]
    lines += [f"{key} = {value}" for key, value in _pairs(args)]
    body = "\n".join(lines) + "\n"
    if parse_preset(body, source="the preset")[name] != args_of_preset(args):
        raise AutoplaceError("the preset does not mean the arguments that it is for")
    return body


def args_of_preset(args: LlamaCppArgs) -> LlamaCppArgs:
    """What of the arguments a preset keeps: all but paths and secrets."""
    return parse_args(args_line(args))


def args_line(args: LlamaCppArgs) -> str:
    words = args.to_command("llama-server")
    return " ".join(_quoted(word) for word in _committed(words))


def _committed(words: list[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word in _SECRET or word in BY_NAME["model"].spellings:
            next(rest, None)
            continue
        yield word


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _pairs(args: LlamaCppArgs) -> Iterator[tuple[str, str]]:
    """Long names and values, in the order of the words."""
    words = list(_committed(args.to_command("llama-server")))[1:]
    rest = iter(words)
    for word in rest:
        if word in COMMON_WORDS:
            option, is_on = COMMON_WORDS[word]
            key = option.spellings[-1]
            value = ("true" if is_on else "false") if option.is_switch else next(rest)
        elif word in SWITCHES:
            key, value = word, "true"
        else:
            key, value = word, next(rest, "")
        if set(value) & {";", "#", "\n"}:
            raise AutoplaceError(f"a preset cannot hold {key} {value}: ; and # start a comment")
        yield key.lstrip("-"), value


def looks_like_preset(text: str) -> bool:
    """Whether a text is a preset file: a section or a pair is its first line that is no comment."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in ";#"), "")
    is_pair = _PAIR.fullmatch(first) is not None and not first.startswith("LLAMA_ARG_")
    return _SECTION.fullmatch(first) is not None or is_pair


def parse_preset(text: str, *, source: str) -> Mapping[str, LlamaCppArgs]:
    """Section → its arguments, those of `[*]` in it.

    Raises `AutoplaceError` for a line that is none, a key that llama.cpp has not, and values that
    contradict each other.
    """
    sections: dict[str, dict[str, str]] = {}
    current = "default"
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in ";#":
            continue
        if header := _SECTION.fullmatch(stripped):
            current = header[1].strip()
            sections[current] = {}
        elif pair := _PAIR.fullmatch(stripped):
            sections.setdefault(current, {})[pair[1]] = pair[2]
        else:
            raise AutoplaceError(
                f"{source}, line {number}: expected [section] or key = value, but got {stripped!r}"
            )
    shared = sections.pop(GLOBAL, {})
    named = {name: pairs for name, pairs in sections.items() if pairs.keys() - {"version"}}
    if not named:
        raise AutoplaceError(f"{source} has no section with arguments")
    return {
        name: _parsed(_over(shared, pairs), where=f"{source}, [{name}]")
        for name, pairs in named.items()
    }


def _over(shared: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """A section's pairs, and those that all share where it has none of that option."""
    given = {_option_of(key) for key in own}
    return {key: value for key, value in shared.items() if _option_of(key) not in given} | dict(own)


def _option_of(key: str) -> str:
    """The option that a key is a spelling of."""
    if key in ENVIRONMENT:
        return ENVIRONMENT[key][0].name
    known = COMMON_WORDS.get(f"--{key}") or COMMON_WORDS.get(f"-{key}")
    return known[0].name if known else key


def _parsed(pairs: Mapping[str, str], *, where: str) -> LlamaCppArgs:
    words: list[str] = []
    for key, value in pairs.items():
        if key not in _OWN_KEYS:
            words += _words(key, value)
    try:
        return parse_args(" ".join(_quoted(word) for word in words))
    except AutoplaceError as error:
        raise AutoplaceError(f"{where}: {error}") from error


def _words(key: str, value: str) -> list[str]:
    """The words of the command line that a pair stands for."""
    if key in ENVIRONMENT:
        option, is_on = ENVIRONMENT[key]
        word = option.spellings[-1] if is_on else option.negatives[-1]
    else:
        found = [dashes + key for dashes in ("--", "-") if _is_word(dashes + key)]
        word = found[0] if found else f"--{key}"
    known = COMMON_WORDS.get(word)
    if known is not None and known[0].is_switch:
        option, is_on = known
        truthy = value in ("on", "enabled", "true", "1")
        if truthy == is_on:
            return [option.spellings[-1]]
        return [option.negatives[-1]] if option.negatives else []
    if word in SWITCHES:
        return [word] if value in ("on", "enabled", "true", "1") else []
    return [word, value]


def _is_word(word: str) -> bool:
    return word in COMMON_WORDS or word in SWITCHES or word in VALUED


def export_preset(path: Path, name: str, args: LlamaCppArgs, header: Header) -> str:
    """Write header and section to `path` in one step and return the text."""
    text = render_file(header, preset_body(name, args))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(draft).chmod(0o644)
        os.replace(draft, path)
    except OSError as error:
        raise AutoplaceError(f"cannot write the preset {path}: {error.strerror}") from error
    return text
