"""What a family of models declares: how it reads a header, its tensors and its modules."""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from autoplace.architectures.geometry import Geometry, Moe, Rope
from autoplace.architectures.spec import Module
from autoplace.errors import AutoplaceError

Shape = tuple[int, ...]
_LARGEST_FLOAT32 = 3.4028234e38


def shortest_of_float32(value: float) -> float:
    """The shortest decimal that is the same float32 as the value: 0.1 for float32's 0.1."""
    exact = struct.pack("<f", value)
    shown = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next(one for one in shown if struct.pack("<f", one) == exact)


class Header(Protocol):
    """What is asked of a file's metadata; `weights.metadata.Metadata` has it, and so has a dict."""

    def __getitem__(self, key: str, /) -> object: ...

    def __contains__(self, key: object, /) -> bool: ...


@dataclass(frozen=True)
class FileLayout:
    """How a file cuts up tensors that another file of the same model may hold whole."""

    split_kv_b: bool = False
    """MLA's kv_b as `attn_k_b` and `attn_v_b` (llama.cpp since 2025) instead of `attn_kv_b`."""
    stacked_experts: bool = True
    """`ffn_gate_exps` of all experts, or the old `ffn_gate.{expert}` (Mixtral)."""


@dataclass(frozen=True)
class Keys:
    """A file's metadata below `<architecture>.`, typed, and its tensors' shapes in torch order."""

    architecture: str
    header: Header
    shapes: Mapping[str, Shape]

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """As the shortest decimal that is the same float32: what the preset says, again."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        if not math.isfinite(value) or abs(value) > _LARGEST_FLOAT32:
            raise self._wrong(key, "a finite float32", value)
        return shortest_of_float32(float(value))

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.header

    def vocab(self) -> int:
        """Rows of the embedding: what the model really has, padding included."""
        if "token_embd.weight" not in self.shapes:
            raise AutoplaceError("tensor 'token_embd.weight' is missing from the file")
        return self.shapes["token_embd.weight"][0]

    def _value(self, key: str, default: object) -> object:
        full = f"{self.architecture}.{key}"
        if full in self.header:
            return self.header[full]
        if default is None:
            raise AutoplaceError(f"metadata key {full!r} is missing from the file")
        return default

    def _wrong(self, key: str, expected: str, came: object) -> AutoplaceError:
        shown = f"{type(came).__name__} {str(came)[:40]!r}"
        return AutoplaceError(
            f"metadata key '{self.architecture}.{key}' should be {expected} but is {shown}"
        )


@dataclass(frozen=True)
class Family:
    """One GGUF architecture. Everything else about a model follows from these functions."""

    architecture: str
    """`general.architecture`."""
    read_geometry: Callable[[Keys], Geometry]
    tensors: Callable[[Geometry, FileLayout], Iterator[tuple[str, Shape]]]
    """Name and shape (torch order) of every tensor that the model uses, in a file's order."""
    modules: Callable[[Geometry, FileLayout], Iterator[Module]]
    """The Hugging Face tree in traversal order, without what is below `mlp.experts`."""
    expert_modules: Callable[[Geometry, Module], Iterator[Module]]
    """What is below one layer's routed experts, in traversal order."""
    metadata: Callable[[Geometry, FileLayout], dict[str, object]]
    """The keys below `<architecture>.` that llama.cpp wants, without that prefix."""


def read_rope(keys: Keys, *, dim: int, interleaved: bool) -> Rope:
    """The rotary keys; only plain and YaRN rotary are known."""
    theta = keys.real("rope.freq_base", 10000.0)
    scaling = keys.text("rope.scaling.type", "none")
    if "rope_freqs.weight" in keys.shapes:
        raise AutoplaceError(
            "the file has 'rope_freqs.weight' (Llama 3's scaled rotary), "
            "but only plain and YaRN rotary embeddings are supported"
        )
    if scaling == "none":
        return Rope(theta=theta, dim=dim, interleaved=interleaved)
    if scaling != "yarn":
        raise AutoplaceError(
            f"rotary scaling should be 'none' or 'yarn' but is {scaling!r} "
            f"(metadata key '{keys.architecture}.rope.scaling.type')"
        )
    return Rope(
        theta=theta,
        dim=dim,
        interleaved=interleaved,
        yarn_factor=keys.real("rope.scaling.factor"),
        original_context=keys.integer("rope.scaling.original_context_length"),
        yarn_log_multiplier=keys.real("rope.scaling.yarn_log_multiplier", 0.0),
        yarn_beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
        yarn_beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
    )


def rope_metadata(rope: Rope) -> dict[str, object]:
    """The inverse of `read_rope`."""
    keys: dict[str, object] = {"rope.freq_base": rope.theta, "rope.dimension_count": rope.dim}
    if rope.yarn_factor != 1.0:
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope.yarn_factor,
            "rope.scaling.original_context_length": rope.original_context,
        }
        if rope.yarn_log_multiplier:
            keys["rope.scaling.yarn_log_multiplier"] = rope.yarn_log_multiplier
        if (rope.yarn_beta_fast, rope.yarn_beta_slow) != (32.0, 1.0):
            keys["rope.scaling.yarn_beta_fast"] = rope.yarn_beta_fast
            keys["rope.scaling.yarn_beta_slow"] = rope.yarn_beta_slow
    return keys


def base_metadata(geometry: Geometry) -> dict[str, object]:
    """What every family's header says."""
    moe = geometry.moe
    return {
        "vocab_size": geometry.vocab,
        "context_length": geometry.context_length,
        "embedding_length": geometry.hidden,
        "block_count": geometry.num_layers + geometry.num_mtp_layers,
        "feed_forward_length": geometry.dense_ffn or (moe.expert_ffn if moe else 0),
        "attention.head_count": geometry.num_heads,
        "attention.layer_norm_rms_epsilon": geometry.rms_eps,
        **rope_metadata(geometry.rope),
        **({"expert_count": moe.num_experts, "expert_used_count": moe.top_k} if moe else {}),
    }


def require_moe(geometry: Geometry) -> Moe:
    """The experts of a family that always has them."""
    if geometry.moe is None:
        raise AutoplaceError(
            f"a {geometry.architecture} model needs experts, but has no 'moe' part"
        )
    return geometry.moe
