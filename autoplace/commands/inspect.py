"""`inspect`: what is in a model file, per layer and role, bytes and types."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.commands.model_source import describe_model
from autoplace.commands.output import answer_console, print_json, table
from autoplace.config import InspectConfig
from autoplace.rules.finding import ranges
from autoplace.units import format_bytes
from autoplace.weights.ggml import TensorInfo


@dataclass(frozen=True)
class Part:
    """The tensors of one role in one layer, or outside of the layers (`layer` is None)."""

    layer: int | None
    role: str
    n_bytes: int
    num_weights: int
    types: Mapping[str, int]
    """GGML type → bytes."""


def run(config: InspectConfig) -> int:
    spec = describe_model(config.model)
    parts = model_parts(spec)
    if config.output == "json":
        print_json("inspect", _document(spec, parts))
    else:
        _print(spec, parts)
    return 0


def model_parts(spec: ModelSpec) -> list[Part]:
    """Every tensor once, gathered by layer and role, in the order of the modules."""
    groups: dict[tuple[int | None, str], dict[str, TensorInfo]] = {}
    for module in spec.modules:
        for info in spec.tensor_infos(module):
            groups.setdefault((module.layer, module.role.value), {})[info.name] = info
    parts = [_part(layer, role, infos.values()) for (layer, role), infos in groups.items() if infos]
    if spec.geometry.tied_embeddings:
        parts = [part for part in parts if part.role != Role.LM_HEAD.value]
    return parts


def _part(layer: int | None, role: str, infos: Iterable[TensorInfo]) -> Part:
    types: Counter[str] = Counter()
    num_weights = 0
    for info in infos:
        types[info.ggml_type.name] += info.n_bytes
        num_weights += info.n_elements
    return Part(layer, role, sum(types.values()), num_weights, dict(types))


def _document(spec: ModelSpec, parts: list[Part]) -> dict[str, Any]:
    return {
        "model": spec.name,
        "architecture": spec.geometry.architecture,
        "fingerprint": spec.fingerprint,
        "geometry": asdict(spec.geometry),
        "n_bytes": sum(part.n_bytes for part in parts),
        "num_weights": sum(part.num_weights for part in parts),
        "parts": [asdict(part) for part in parts],
    }


def _print(spec: ModelSpec, parts: list[Part]) -> None:
    geometry = spec.geometry
    total, weights = sum(p.n_bytes for p in parts), sum(p.num_weights for p in parts)
    console = answer_console()
    console.print(
        f"{spec.name}: {geometry.architecture}, {geometry.num_layers} layers, hidden "
        f"{geometry.hidden}, {_experts(spec)}, context {geometry.context_length}; "
        f"{weights / 1e9:.2f} G weights in {format_bytes(total)} "
        f"({8 * total / weights:.2f} bits a weight)"
    )
    by_role = table("Bytes by role", "role", "layers", "bytes", "share", "types")
    for role, same in _grouped(parts, by_layer=False).items():
        n_bytes = sum(part.n_bytes for part in same)
        layers = ranges(part.layer for part in same if part.layer is not None)
        by_role.add_row(
            role[0], layers, format_bytes(n_bytes), f"{n_bytes / total:.1%}", _types(same)
        )
    console.print(by_role)
    by_layer = table("Bytes by layer", "layers", "each", *_roles(parts))
    for numbers, row in _equal_layers(parts):
        by_layer.add_row(ranges(numbers), *row)
    console.print(by_layer)


def _grouped(parts: list[Part], *, by_layer: bool) -> dict[tuple[Any, ...], list[Part]]:
    groups: dict[tuple[Any, ...], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.layer,) if by_layer else (part.role,), []).append(part)
    return groups


def _roles(parts: list[Part]) -> list[str]:
    return list(dict.fromkeys(part.role for part in parts if part.layer is not None))


def _equal_layers(parts: list[Part]) -> list[tuple[list[int], tuple[str, ...]]]:
    """Rows of the table by layer; layers with the same bytes and types share one."""
    roles = _roles(parts)
    rows: dict[tuple[str, ...], list[int]] = {}
    for (layer,), same in _grouped(parts, by_layer=True).items():
        if layer is None:
            continue
        cells = {part.role: f"{format_bytes(part.n_bytes)} {_types([part])}" for part in same}
        total = format_bytes(sum(part.n_bytes for part in same))
        rows.setdefault((total, *(cells.get(role, "") for role in roles)), []).append(layer)
    return [(layers, row) for row, layers in rows.items()]


def _types(parts: list[Part]) -> str:
    types: Counter[str] = Counter()
    for part in parts:
        types.update(part.types)
    return " ".join(name for name, _ in types.most_common())


def _experts(spec: ModelSpec) -> str:
    moe = spec.geometry.moe
    if moe is None:
        return "dense"
    return f"{moe.num_experts} experts of which {moe.top_k} run"
