"""Presets of conf/model against the published sizes, and what a wrong one says."""

from typing import Any

import pytest

from autoplace.architectures import file_tensors, geometry_from_preset, read_preset
from autoplace.architectures.geometry import Geometry
from autoplace.architectures.presets import preset_names
from autoplace.errors import AutoplaceError


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek-v2-lite", 15.7),
        ("deepseek-v2", 236),
        ("deepseek-v3", 671),
        ("kimi-k2", 1026),
        ("qwen3-30b-a3b", 30.5),
        ("qwen3-235b-a22b", 235),
        ("qwen3-coder-480b", 480),
        ("qwen2-57b-a14b", 57.4),
        ("mixtral-8x7b", 46.7),
        ("mixtral-8x22b", 141),
        ("smollm2-135m", 0.1345),
    ],
)
def test_a_preset_has_the_published_number_of_weights(name: str, billions: float) -> None:
    tensors = file_tensors(read_preset(name).geometry, quant="f16")
    total = sum(info.n_elements for info in tensors)
    assert total / 1e9 == pytest.approx(billions, rel=0.005)


def test_the_default_model_is_a_few_hundred_megabytes_of_mostly_experts() -> None:
    preset = read_preset("mini")
    tensors = file_tensors(preset.geometry, quant=preset.default_quant)
    experts = sum(info.n_bytes for info in tensors if "_exps." in info.name)
    total = sum(info.n_bytes for info in tensors)
    assert 150e6 < total < 400e6
    assert experts / total > 0.8


@pytest.mark.parametrize("name", [n for n in preset_names() if n.startswith("tiny")])
def test_tiny_presets_are_a_few_megabytes(name: str) -> None:
    preset = read_preset(name)
    tensors = file_tensors(preset.geometry, quant=preset.default_quant)
    assert sum(info.n_bytes for info in tensors) < 8 * 2**20


def test_an_unknown_preset_names_its_near_miss() -> None:
    with pytest.raises(AutoplaceError, match="-light'; did you mean 'deepseek-v2-lite'"):
        read_preset("deepseek-v2-light")


DENSE: dict[str, Any] = {
    "architecture": "llama",
    "default_quant": "q8_0",
    "num_layers": 2,
    "num_dense_lead_layers": 2,
    "hidden": 64,
    "num_heads": 2,
    "dense_ffn": 128,
    "vocab": 300,
    "context_length": 128,
    "rms_eps": 1e-5,
    "attention": {"num_kv_heads": 1, "head_dim": 32},
    "rope": {"theta": 10000, "dim": 32, "interleaved": True},
}


def test_keys_mirror_the_geometry() -> None:
    geometry = geometry_from_preset(DENSE)
    assert isinstance(geometry, Geometry)
    assert geometry.rope.theta == 10000.0
    assert geometry.moe is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hiden": 3}, r"model\.hiden is no key of a model preset; did you mean 'hidden'"),
        ({"hidden": "64"}, r"model\.hidden should be of type int but is '64'"),
        ({"hidden": True}, r"model\.hidden should be of type int but is True"),
        ({"rope": {"dim": 32, "interleaved": True}}, r"model\.rope\.theta is missing"),
        ({"attention": 3}, r"model\.attention should be of type"),
    ],
)
def test_a_wrong_key_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoplaceError, match=message):
        geometry_from_preset(DENSE | change)
