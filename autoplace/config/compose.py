"""Hydra's grammar in, plain values out, every mistake as one line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from autoplace.config.groups import CONF, choices, default_choices
from autoplace.config.schema import COMMANDS, GROUPS
from autoplace.errors import AutoplaceError, did_you_mean

FREE_TEXT = frozenset(
    {"model.path", "rules", "out", "study_dir", "storage.path", "explain", "fix"}
    | {"engine.binaries", "engine.args"}
)
"""Keys whose values are taken as they stand: spaces, commas, `=`, `~`, `$` mean nothing there."""


@dataclass(frozen=True)
class Composed:
    """The values of a command, with what the user said."""

    values: Mapping[str, Any]
    """Nested plain values, typed by the schema."""
    choices: Mapping[str, str]
    """Group → what it is set to."""
    given: Mapping[str, str]
    """Key → value as the user gave them, groups included."""

    def changed(self, group: str) -> list[str]:
        """Overridden keys of a group: `gpu_memory_gib-12` for `hardware.gpu_memory_gib=12`."""
        return [
            re.sub(r"[^\w.+-]+", "-", f"{key.partition('.')[2]}-{value}").strip("-")
            for key, value in sorted(self.given.items())
            if key.startswith(f"{group}.") and key != f"{group}.name"
        ]


def compose_command(command: str, overrides: Sequence[str]) -> Composed:
    """Merge conf/ and the overrides. Raise `AutoplaceError` for whatever is wrong with them."""
    given = _split(command, overrides)
    chosen = {
        group: _choice(group, given.get(group, default))
        for group, default in default_choices(command).items()
    }
    values = {
        f"{key}={value}" for key, value in given.items() if key not in chosen | _free_text(given)
    }
    picks = [f"{group}={choice}" for group, choice in chosen.items()]
    try:
        config = _compose(command, [*picks, *sorted(values)])
    except (HydraException, OmegaConfBaseException) as problem:
        defaults = _compose(command, picks)
        _refuse_unknown(command, given, defaults)
        override = getattr(problem, "override", None)
        what = f"cannot read {override}: " if override else ""
        raise AutoplaceError(f"{what}{_first_line(problem)}") from problem
    _refuse_unknown(command, given, config)
    plain = _typed(command, config)
    for key, text in _free_text(given).items():
        _set(plain, key, text)
    return Composed(values=plain, choices=chosen, given=given)


def _split(command: str, overrides: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise AutoplaceError(
                f"expected key=value, got {override!r}; `{command} --help` lists the keys"
            )
        given[key] = _unquoted(value) if key in FREE_TEXT else value
    return given


def _unquoted(text: str) -> str:
    """Free text as it is meant, where it comes quoted as Hydra asks for it elsewhere."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _free_text(given: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in given.items() if key in FREE_TEXT}


def _choice(group: str, choice: str) -> str:
    choice = _unquoted(choice)
    known = choices(group)
    if choice in known:
        return choice
    hint = did_you_mean(choice, known)
    if group == "model" and (choice.endswith(".gguf") or "/" in choice):
        hint = f"; a file is given as model.path={choice}"
    raise AutoplaceError(f"no {group} {choice!r}{hint}")


def _compose(command: str, overrides: list[str]) -> DictConfig:
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3", job_name="autoplace"):
        config = compose(command, overrides=overrides)
    OmegaConf.resolve(config)
    return config


def _refuse_unknown(command: str, given: Mapping[str, str], config: DictConfig) -> None:
    known = {*_flat_keys(config), *default_choices(command)}
    for key in given:
        if key not in known:
            raise AutoplaceError(f"{command} has no key {key!r}{_near(key, known, command)}")


def _near(key: str, known: set[str], command: str) -> str:
    """The near miss, also where only the group in front of the dot is missing."""
    endings = sorted(name for name in known if name.rpartition(".")[2] == key)
    if endings:
        return f"; did you mean {endings[0]!r}"
    hint = did_you_mean(key, known)
    return hint if "did you mean" in hint else f"; `{command} --help` lists the keys"


def _flat_keys(config: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, DictConfig):
            yield from _flat_keys(value, f"{prefix}{key}.")


def _typed(command: str, config: DictConfig) -> dict[str, Any]:
    """Plain values, each checked against the type that the schema gives its key."""
    schemas = {"": COMMANDS[command]} | {
        group: GROUPS[group] for group in default_choices(command) if group in GROUPS
    }
    plain: dict[str, Any] = {}
    try:
        for group, schema in schemas.items():
            part = config[group] if group else _own_keys(command, config)
            merged = OmegaConf.merge(OmegaConf.structured(schema), part)
            values = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
            assert isinstance(values, dict)
            plain.update({group: values} if group else {str(k): v for k, v in values.items()})
        plain["model"] = OmegaConf.to_container(config["model"], resolve=True)
    except OmegaConfBaseException as problem:
        key = f"{group}.{problem.full_key}" if group else f"{problem.full_key}"
        raise AutoplaceError(f"{key}: {_first_line(problem)}") from problem
    return plain


def _own_keys(command: str, config: DictConfig) -> dict[str, Any]:
    return {str(k): v for k, v in config.items() if k not in default_choices(command)}


def _set(values: dict[str, Any], dotted: str, text: str) -> None:
    *groups, key = dotted.split(".")
    for group in groups:
        values = values[group]
    values[key] = None if text in ("", "null") else text


def _first_line(problem: Exception) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if "is not a ListConfig" in str(problem):
        return "expected a list, as in [a,b]"
    return (lines[0] if lines else type(problem).__name__).rstrip(".")
