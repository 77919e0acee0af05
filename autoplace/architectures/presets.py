"""Geometries of conf/model: plain keys that mirror `Geometry`, and the preset's own types."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

import autoplace
from autoplace.architectures.geometry import Geometry, Gqa, Mla, Moe, Rope
from autoplace.errors import AutoplaceError, did_you_mean

PRESET_FOLDER = Path(autoplace.__file__).parent / "conf" / "model"
_NOT_GEOMETRY = ("default_quant",)
_PARTS: Mapping[str, type] = {"rope": Rope, "moe": Moe}


@dataclass(frozen=True)
class Preset:
    """A model that is known without a file."""

    name: str
    geometry: Geometry
    default_quant: str


def read_preset(name: str) -> Preset:
    """A preset of conf/model by its name, without Hydra."""
    known = preset_names()
    if name not in known:
        raise AutoplaceError(f"there is no model preset {name!r}{did_you_mean(name, known)}")
    mapping = yaml.safe_load((PRESET_FOLDER / f"{name}.yaml").read_text())
    return Preset(name, geometry_from_preset(mapping), str(mapping["default_quant"]))


def preset_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PRESET_FOLDER.glob("*.yaml")))


def geometry_from_preset(mapping: Mapping[str, Any]) -> Geometry:
    """The geometry in a preset's keys. Raise `AutoplaceError` naming any that is wrong."""
    values = {key: value for key, value in mapping.items() if key not in _NOT_GEOMETRY}
    attention = values.get("attention")
    if isinstance(attention, Mapping):
        kind: type = Mla if "kv_lora_rank" in attention else Gqa
        values["attention"] = _build(kind, attention, "attention.")
    for key, part in _PARTS.items():
        if isinstance(values.get(key), Mapping):
            values[key] = _build(part, values[key], f"{key}.")
    geometry = _build(Geometry, values, "")
    assert isinstance(geometry, Geometry)
    return geometry


def _build(kind: type, values: Mapping[str, Any], where: str) -> Any:
    known = {field.name: field for field in fields(kind)}
    hints = get_type_hints(kind)
    for key, value in values.items():
        if key not in known:
            raise AutoplaceError(
                f"model.{where}{key} is no key of a model preset{did_you_mean(key, known)}"
            )
        if not _is_of(value, hints[key]):
            shown = getattr(hints[key], "__name__", str(hints[key]))
            raise AutoplaceError(f"model.{where}{key} should be of type {shown} but is {value!r}")
    for name, field in known.items():
        if name not in values and field.default is MISSING:
            raise AutoplaceError(f"model.{where}{name} is missing from the model preset")
    converted = {key: _as(value, hints[key]) for key, value in values.items()}
    return kind(**converted)


def _is_of(value: object, hint: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _as(value: Any, hint: Any) -> Any:
    return float(value) if hint is float else value
