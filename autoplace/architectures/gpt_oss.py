"""gpt-oss-20b and -120b: MXFP4 experts with biases, attention sinks, a window on every other layer.

Known for plans, checks and exports; autoplace has no engine for it. Source: llama.cpp's `gpt-oss`
tensors, and config.json of openai/gpt-oss-20b.
"""

from collections.abc import Iterator

from autoplace.architectures import family, parts
from autoplace.architectures.family import Family, FileLayout, Keys, Shape
from autoplace.architectures.geometry import Geometry, Gqa, Moe
from autoplace.architectures.parts import Classes
from autoplace.architectures.spec import Module, Role

CLASSES = Classes("transformers.models.gpt_oss.modeling_gpt_oss", "GptOss")


def _gqa(geometry: Geometry) -> Gqa:
    assert isinstance(geometry.attention, Gqa), geometry.architecture
    return geometry.attention


def _modules(geometry: Geometry, layout: FileLayout) -> Iterator[Module]:
    def layer_modules(layer: int) -> Iterator[Module]:
        path, block = f"model.layers.{layer}", f"blk.{layer}"
        attention = f"{path}.self_attn"
        sinks = (f"{block}.attn_sinks.weight",) if _gqa(geometry).sinks else ()
        yield Module(attention, CLASSES.of("Attention"), Role.ATTENTION, layer, sinks)
        for name, tensor in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")):
            tensors = (f"{block}.attn_{tensor}.{part}" for part in ("weight", "bias"))
            yield parts.linear(f"{attention}.{name}_proj", Role.ATTENTION_LINEAR, layer, *tensors)
        mlp = f"{path}.mlp"
        yield Module(mlp, CLASSES.of("MLP"), Role.MLP, layer, is_moe=True)
        router = tuple(f"{block}.ffn_gate_inp.{part}" for part in ("weight", "bias"))
        yield Module(f"{mlp}.router", CLASSES.of("TopKRouter"), Role.ROUTER, layer, router)
        experts = tuple(
            f"{block}.ffn_{name}_exps.{part}"
            for name in ("gate", "up", "down")
            for part in ("weight", "bias")
        )
        yield Module(f"{mlp}.experts", CLASSES.of("Experts"), Role.EXPERTS, layer, experts)

    tree = parts.causal_lm(geometry, CLASSES, layer_modules, model_rotary=True)
    return parts.with_post_attention_norm(tree)


def _expert_modules(geometry: Geometry, experts: Module) -> Iterator[Module]:
    """Hugging Face keeps the experts stacked: nothing is below them."""
    return parts.each_expert(0, experts, CLASSES.of("MLP"), ())


def _tensors(geometry: Geometry, layout: FileLayout) -> Iterator[tuple[str, Shape]]:
    def layer_tensors(layer: int) -> Iterator[tuple[str, Shape]]:
        block = f"blk.{layer}"
        yield from parts.gqa_tensors_with_post_attention_norm(geometry, layer)
        yield f"{block}.attn_output.bias", (geometry.hidden,)
        yield f"{block}.attn_sinks.weight", (geometry.num_heads,)
        moe = family.require_moe(geometry)
        yield f"{block}.ffn_gate_inp.bias", (moe.num_experts,)
        for name, shape in parts.experts_tensors(geometry, layer):
            yield name, shape
            if name.endswith("_exps.weight"):
                yield name.replace(".weight", ".bias"), shape[:-1]

    return parts.causal_lm_tensors(geometry, layer_tensors)


def _read_geometry(keys: Keys) -> Geometry:
    head_dim = keys.integer("attention.key_length")
    return parts.read_gqa_geometry(
        keys,
        "gpt-oss",
        Gqa(
            keys.integer("attention.head_count_kv"),
            head_dim,
            qkv_bias=True,
            output_bias=True,
            sinks=True,
            sliding_window=keys.integer("attention.sliding_window"),
        ),
        Moe(
            num_experts=keys.integer("expert_count"),
            top_k=keys.integer("expert_used_count"),
            expert_ffn=keys.integer("expert_feed_forward_length"),
            normalise_top_k=True,
            linear_biases=True,
        ),
        rope_dim=keys.integer("rope.dimension_count", head_dim),
    )


def _metadata(geometry: Geometry, layout: FileLayout) -> dict[str, object]:
    return (
        family.base_metadata(geometry)
        | parts.gqa_metadata(geometry)
        | {
            "attention.sliding_window": _gqa(geometry).sliding_window,
            "expert_feed_forward_length": family.require_moe(geometry).expert_ffn,
        }
    )


GPT_OSS = Family(
    architecture="gpt-oss",
    read_geometry=_read_geometry,
    tensors=_tensors,
    modules=_modules,
    expert_modules=_expert_modules,
    metadata=_metadata,
)
