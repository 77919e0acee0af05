"""From a GGUF file or a preset's geometry to a ModelSpec, and to what a file of it contains."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from autoplace.architectures.deepseek2 import DEEPSEEK2, layer_tensors
from autoplace.architectures.family import Family, FileLayout, Keys, Shape
from autoplace.architectures.geometry import Geometry, Mla
from autoplace.architectures.glm4moe import GLM4MOE
from autoplace.architectures.glm4moe import layer_tensors as glm_layer_tensors
from autoplace.architectures.gpt_oss import GPT_OSS
from autoplace.architectures.llama import LLAMA
from autoplace.architectures.minimax_m2 import MINIMAX_M2
from autoplace.architectures.qwen2moe import QWEN2MOE
from autoplace.architectures.qwen3moe import QWEN3MOE
from autoplace.architectures.spec import ModelSpec, Module
from autoplace.architectures.tokenizer import tokenizer_metadata
from autoplace.errors import AutoplaceError
from autoplace.weights.ggml import TensorInfo
from autoplace.weights.quant_mix import quant_mix, tensor_type

if TYPE_CHECKING:  # presets need no file, and no numpy
    from autoplace.weights.gguf_file import GGUFFile

FAMILIES: Mapping[str, Family] = {
    family.architecture: family
    for family in (DEEPSEEK2, LLAMA, QWEN2MOE, QWEN3MOE, GLM4MOE, GPT_OSS, MINIMAX_M2)
}
WHOLE = FileLayout()
_LATER = ("wide_qk_norm", "output_bias", "sinks", "sliding_window", "linear_biases")
"""Facts that came later: where a model has none of them, its fingerprint is what it was."""


def family(architecture: str) -> Family:
    """The family of a `general.architecture`, or the error that lists the known ones."""
    if architecture not in FAMILIES:
        raise AutoplaceError(
            f"expected a model of a known architecture but got {architecture[:40]!r}; "
            f"there are {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[architecture]


def spec_from_gguf(gguf: "GGUFFile", *, name: str | None = None) -> ModelSpec:
    """The spec of a file. Raise `AutoplaceError` for what is unknown, missing or of another shape.

    `name` is the file's own (`general.name`) if it is not given.
    """
    architecture = gguf.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise AutoplaceError(
            f"metadata key 'general.architecture' should name the model's family but is "
            f"{str(architecture)[:40]!r}; there are {', '.join(sorted(FAMILIES))}"
        )
    known = family(architecture)
    shapes = {tensor: info.shape for tensor, info in gguf.tensors.items()}
    geometry = known.read_geometry(Keys(architecture, gguf.metadata, shapes))
    _check_layers(geometry, shapes)
    layout = FileLayout(
        split_kv_b=any(tensor.endswith(".attn_k_b.weight") for tensor in shapes),
        stacked_experts=not any(tensor.endswith(".ffn_gate.0.weight") for tensor in shapes),
    )
    _check_tensors(dict(known.tensors(geometry, layout)), shapes)
    if name is None:
        name = str(gguf.metadata.get("general.name", gguf.paths[0].stem))
    return _spec(name, known, geometry, layout, gguf.tensors)


def spec_from_geometry(
    name: str, geometry: Geometry, *, quant: str, layout: FileLayout = WHOLE
) -> ModelSpec:
    """The spec of the file that `synth` would write; equal to that file's own."""
    infos = {info.name: info for info in file_tensors(geometry, quant=quant, layout=layout)}
    return _spec(name, family(geometry.architecture), geometry, layout, infos)


def file_tensors(
    geometry: Geometry, *, quant: str, layout: FileLayout = WHOLE
) -> tuple[TensorInfo, ...]:
    """All tensors of a file, in its order, with the types of llama.cpp's own `quant` mix."""
    num_experts = geometry.moe.num_experts if geometry.moe else 0
    num_layers = geometry.num_layers + geometry.num_mtp_layers
    return tuple(
        TensorInfo(
            name,
            shape,
            tensor_type(
                name,
                shape,
                quant=quant,
                num_layers=num_layers,
                num_experts=num_experts,
                tied_embeddings=geometry.tied_embeddings,
            ),
        )
        for name, shape in _file_shapes(geometry, layout)
    )


def file_metadata(
    name: str, geometry: Geometry, quant: str, *, layout: FileLayout = WHOLE
) -> dict[str, object]:
    """All keys that llama.cpp needs to load a file of this model, a tokenizer included."""
    architecture = geometry.architecture
    keys = family(architecture).metadata(geometry, layout)
    return {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": name,
        "general.quantization_version": 2,
        "general.file_type": quant_mix(quant).file_type,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
        **tokenizer_metadata(geometry.vocab),
    }


def expert_modules(spec: ModelSpec, experts: Module) -> Iterator[Module]:
    """The modules below a layer's routed experts, in traversal order: an exact walk visits them."""
    return family(spec.geometry.architecture).expert_modules(spec.geometry, experts)


def _file_shapes(geometry: Geometry, layout: FileLayout) -> Iterator[tuple[str, Shape]]:
    yield from family(geometry.architecture).tensors(geometry, layout)
    for layer in range(geometry.num_layers, geometry.num_layers + geometry.num_mtp_layers):
        yield from _mtp_tensors(geometry, layout, layer)


def _mtp_tensors(geometry: Geometry, layout: FileLayout, layer: int) -> Iterator[tuple[str, Shape]]:
    """DeepSeek-V3's and GLM-4.5's multi-token-prediction layer: in the file, not in the model."""
    if geometry.architecture == "glm4moe":
        yield from glm_layer_tensors(geometry, layer)
    elif isinstance(geometry.attention, Mla):
        yield from layer_tensors(geometry, layout, layer)
    else:
        raise AutoplaceError(f"num_mtp_layers should be 0 for {geometry.architecture} models")
    hidden = geometry.hidden
    yield f"blk.{layer}.nextn.eh_proj.weight", (hidden, 2 * hidden)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        yield f"blk.{layer}.nextn.{norm}.weight", (hidden,)


def _check_layers(geometry: Geometry, shapes: Mapping[str, Shape]) -> None:
    """Every layer has tensors: refuse a count that would make us list millions of them."""
    num_layers = geometry.num_layers + geometry.num_mtp_layers
    if not 0 < geometry.num_layers <= num_layers <= len(shapes):
        raise AutoplaceError(
            f"the header says {geometry.num_layers} layers and {geometry.num_mtp_layers} more for "
            f"multi-token prediction, but the file has {len(shapes)} tensors"
        )


def _check_tensors(expected: Mapping[str, Shape], shapes: Mapping[str, Shape]) -> None:
    missing = [name for name in expected if name not in shapes]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AutoplaceError(f"tensor {missing[0]!r}{more} is missing from the file")
    for name, shape in expected.items():
        if _without_ones(shapes[name]) != _without_ones(shape):
            raise AutoplaceError(
                f"tensor {name!r} should have the shape {shape} by the file's metadata "
                f"but has {shapes[name]}"
            )


def _without_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _spec(
    name: str,
    known: Family,
    geometry: Geometry,
    layout: FileLayout,
    tensors: Mapping[str, TensorInfo],
) -> ModelSpec:
    modules = tuple(known.modules(geometry, layout))
    used = {tensor: tensors[tensor] for module in modules for tensor in module.tensors}
    return ModelSpec(name, geometry, modules, used, _fingerprint(geometry, used))


def _fingerprint(geometry: Geometry, tensors: Mapping[str, TensorInfo]) -> str:
    """16 hex digits of what decides where a model fits and how it runs; not of its weights.

    An MTP layer that is in one file and not in another does not count: it never runs.
    """
    digest = hashlib.sha256()
    facts = asdict(geometry) | {"num_mtp_layers": 0}
    for part in ("attention", "moe"):
        values = facts[part] or {}
        facts[part] = {k: v for k, v in values.items() if v or k not in _LATER} or facts[part]
    digest.update(repr(sorted(facts.items())).encode())
    for name in sorted(tensors):
        info = tensors[name]
        digest.update(f"{name} {info.shape} {info.ggml_type.name}\n".encode())
    return digest.hexdigest()[:16]
