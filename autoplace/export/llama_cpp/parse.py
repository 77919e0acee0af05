"""A user's line of llama.cpp arguments as a record; what contradicts itself is refused.

llama.cpp itself takes the last of two values and lets the command line win over the environment,
without saying that something was lost.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.export.llama_cpp.args import (
    BENCH,
    DEFAULT_BATCH,
    DEFAULT_UBATCH,
    FLASH_ATTENTION,
    KV_TYPE_NAMES,
    SPLIT_MODES,
    LlamaCppArgs,
)
from autoplace.export.llama_cpp.contradictions import refuse_contradictions
from autoplace.export.llama_cpp.names import EVERY_LAYERS_EXPERTS, experts_of_first_layers
from autoplace.export.llama_cpp.options import (
    BENCH_SWITCHES,
    BENCH_VALUED,
    BENCH_WORDS,
    COMMON_WORDS,
    ENVIRONMENT,
    NOT_IN_BENCH,
    Option,
)
from autoplace.export.llama_cpp.other_options import SWITCHES, TWO_VALUED, VALUED, VARIABLES

ALL_LAYERS = 999
"""`-ngl all`: more layers than any model has."""
_TRUE, _FALSE = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")
_ASSIGNMENT = re.compile(r"(LLAMA_ARG_\w+)=(.*)", re.DOTALL)
_PROGRAM = re.compile(r"(.*/)?llama(-[\w-]+)?(\.exe)?")


@dataclass(frozen=True)
class Given:
    """One setting as somebody wrote it."""

    option: Option
    word: str
    """As written: `-ngl 20`, `LLAMA_ARG_MMAP=0`."""
    value: Any


def parse_args(line: str) -> LlamaCppArgs:
    """The record that a line means: `llama-server -m x.gguf -ngl 20 …`, the program left out or
    not, with `LLAMA_ARG_…=` before it or not, in llama-bench's dialect where it is that program.

    Raises `AutoplaceError` for a word that llama.cpp has not, with the near miss; for a value that
    it would not take; and for two words that contradict each other, both named.
    """
    try:
        words = shlex.split(line.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise AutoplaceError(f"not a command line: {error}") from error
    given, extra = _read(words)
    values: dict[str, Any] = {}
    first: dict[str, Given] = {}
    for one in given:
        before = first.setdefault(one.option.name, one)
        if one.option.adds_up and before is not one:
            values[one.option.name] += one.value
        elif before.value != one.value:
            raise AutoplaceError(f"{before.word} and {one.word} contradict each other")
        else:
            values[one.option.name] = one.value
    refuse_contradictions({name: one.word for name, one in first.items()}, values)
    return _record(given, values, extra)


def _record(given: Sequence[Given], values: Mapping[str, Any], extra: list[str]) -> LlamaCppArgs:
    overrides: list[tuple[str, str]] = []
    for one in given:
        if one.option.name == "overrides":
            overrides += one.value
        elif one.option.name == "cpu_moe" and one.value:
            overrides.append((EVERY_LAYERS_EXPERTS, "CPU"))
        elif one.option.name == "n_cpu_moe":
            overrides += [(pattern, "CPU") for pattern in experts_of_first_layers(one.value)]
    known = {field.name for field in fields(LlamaCppArgs)} - {"overrides", "extra"}
    plain = {name: value for name, value in values.items() if name in known}
    defaults = {"batch": DEFAULT_BATCH, "ubatch": DEFAULT_UBATCH} | plain
    plain["ubatch"] = min(defaults["batch"], defaults["ubatch"])  # as llama-context.cpp does
    return LlamaCppArgs(**plain, overrides=tuple(overrides), extra=tuple(extra))


def _read(words: Sequence[str]) -> tuple[list[Given], list[str]]:
    """The settings in the order in which llama.cpp applies them, and the words passed on."""
    given: list[Given] = []
    start = 0
    while start < len(words) and (match := _ASSIGNMENT.fullmatch(words[start])):
        given += _from_environment(match[1], match[2])
        start += 1
    is_bench = False
    if start < len(words) and _PROGRAM.fullmatch(words[start]):
        is_bench = PurePath(words[start]).name.removesuffix(".exe") == BENCH
        start += 1
    extra: list[str] = []
    rest = iter(words[start:])
    for word in rest:
        spelling = word.replace("_", "-") if word.startswith("--") else word
        found = (BENCH_WORDS if is_bench else COMMON_WORDS).get(spelling)
        if found is None or (is_bench and spelling in NOT_IN_BENCH):
            extra += [spelling, *_extra_values(spelling, word, rest, is_bench)]
            continue
        option, is_on = found
        if option.is_switch and not is_bench:
            given.append(Given(option, word, is_on))
            continue
        text = _next(rest, word)
        value = _value(option, f"{word} {text}", text, is_bench=is_bench)
        given.append(Given(option, f"{word} {text}", value if is_on else not value))
    return given, extra


def _from_environment(name: str, text: str) -> Iterator[Given]:
    """Only those that say something of placement or speed; the others are left to the shell."""
    if name in VARIABLES:
        return
    if name not in ENVIRONMENT:
        near = _near(name, (*ENVIRONMENT, *VARIABLES))
        raise AutoplaceError(f"llama.cpp has no variable {name}{near}")
    option, is_on = ENVIRONMENT[name]
    word = f"{name}={text}"
    yield Given(option, word, _value(option, word, text, is_bench=False) if is_on else False)


def _extra_values(spelling: str, word: str, rest: Iterator[str], is_bench: bool) -> Iterator[str]:
    switches = BENCH_SWITCHES if is_bench else SWITCHES
    valued = BENCH_VALUED if is_bench else VALUED
    if spelling in switches:
        return
    if spelling in valued:
        yield _next(rest, word)
    elif spelling in TWO_VALUED and not is_bench:
        yield from (_next(rest, word), _next(rest, word))
    elif not word.startswith("-"):
        raise AutoplaceError(f"expected an option of llama.cpp, but got {word!r}")
    else:
        known = {*switches, *valued, *(BENCH_WORDS if is_bench else COMMON_WORDS)}
        program = BENCH if is_bench else "llama.cpp"
        raise AutoplaceError(f"{program} has no option {word}{_near(spelling, known)}")


def _near(word: str, known: Iterable[str]) -> str:
    """The near miss; llama.cpp has too many words to list them."""
    near = did_you_mean(word, known)
    return near if near.startswith("; did") else ""


def _next(rest: Iterator[str], word: str) -> str:
    value = next(rest, None)
    if value is None:
        raise AutoplaceError(f"{word} needs a value, but the line ends")
    return value


def _value(option: Option, word: str, text: str, *, is_bench: bool) -> Any:
    """What a value means to a field of `LlamaCppArgs`."""
    name = option.name
    if option.is_switch or name == "fit":
        return _switch(word, text)
    if is_bench and name not in ("overrides", "rpc", "model") and "," in text:
        raise AutoplaceError(f"{word} is several tests of {BENCH}; give one")
    if name == "overrides":
        return _overrides(word, text, ";" if is_bench else ",")
    if name == "tensor_split":
        return tuple(_share(word, part) for part in re.split("[;,/]+", text))
    if name in ("rpc", "devices"):
        return tuple(re.split("[,/]" if is_bench and name == "devices" else ",", text))
    if name == "n_gpu_layers":
        return _gpu_layers(word, text)
    if name == "flash_attn":
        return _flash(word, text)
    choices = {
        "cache_type_k": KV_TYPE_NAMES,
        "cache_type_v": KV_TYPE_NAMES,
        "split_mode": SPLIT_MODES,
    }
    if name in choices:
        return _choice(word, text, choices[name])
    return text if name == "model" else _count(word, text, least=_LEAST.get(name, 1))


_LEAST = {"context": 0, "main_gpu": 0, "n_cpu_moe": 0, "fit_target_mib": 0}


def _count(word: str, text: str, *, least: int) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        raise AutoplaceError(f"{word}: expected a number from {least} on, but got {text!r}")
    return int(text)


def _gpu_layers(word: str, text: str) -> int | None:
    """None is `auto`: what `--fit` may choose."""
    if text in ("auto", "-1"):
        return None
    if text in ("all", "-2"):
        return ALL_LAYERS
    return _count(word, text, least=0)


def _share(word: str, text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        raise AutoplaceError(f"{word}: expected shares as 3,1, but got {text!r}")
    return float(text)


def _switch(word: str, text: str) -> bool:
    if text not in (*_TRUE, *_FALSE):
        raise AutoplaceError(f"{word}: expected on or off, but got {text!r}")
    return text in _TRUE


def _flash(word: str, text: str) -> str:
    if text in _TRUE:
        return "on"
    if text in _FALSE:
        return "off"
    return _choice(word, "auto" if text == "-1" else text, FLASH_ATTENTION)


def _choice(word: str, text: str, known: Sequence[str]) -> str:
    if text not in known:
        raise AutoplaceError(f"{word}: expected one of {', '.join(known)}, but got {text!r}")
    return text


def _overrides(word: str, text: str, separator: str) -> tuple[tuple[str, str], ...]:
    """Pattern and buffer, cut at the first `=`, as llama.cpp does."""
    found = []
    for part in text.split(separator):
        pattern, equals, buffer = part.partition("=")
        if not equals or not pattern or not buffer:
            raise AutoplaceError(
                f"{word}: expected PATTERN=BUFFER{separator}…, as in exps=CPU, but got {part!r}"
            )
        found.append((pattern, buffer))
    return tuple(found)
