"""llama.cpp's arguments: every tensor where the placement has it, and lines that people write."""

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoplace.architectures import read_preset, spec_from_geometry
from autoplace.architectures.family import FileLayout
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.layout import (
    Arguments,
    arguments_of,
    check_overrides,
    layer_devices,
    parse_arguments,
    tensor_devices,
)
from autoplace.export.llama_cpp.memory import cache_bytes, plan_llama_cpp
from autoplace.placement.assignment import Assignment
from autoplace.placement.expand import Expander
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload
from tests.rules.specs import spec

GPUS = ["cuda:0", "cuda:1", "cuda:2"]
HOST = Choice("cpu", "KExpertsCPU")


def placed(
    name: str, homes: list[str], experts: list[Choice]
) -> tuple[Assignment, tuple[str, ...]]:
    model = spec(name)
    layers = tuple(
        LayerPlacement(
            home,
            Choice(home, "KLinearTorch"),
            Choice(home, "KLinearTorch"),
            experts[i % len(experts)] if i in model.moe_layers else None,
        )
        for i, home in enumerate(homes)
    )
    placement = Placement("builtin", layers, Choice(homes[-1], "KLinearTorch"))
    return Expander(model).expand(placement), tuple(homes)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3", "mixtral-8x7b", "qwen3-30b-a3b"])
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_arguments_put_every_tensor_where_the_placement_has_it(
    name: str, data: st.DataObject
) -> None:
    num_layers = spec(name).geometry.num_layers
    num_gpus = data.draw(st.integers(1, 3))
    cuts = st.lists(
        st.integers(1, num_layers - 1), min_size=num_gpus - 1, max_size=num_gpus - 1, unique=True
    )
    ends = [*sorted(data.draw(cuts)), num_layers]
    homes = [
        GPUS[next(i for i, end in enumerate(ends) if layer < end)] for layer in range(num_layers)
    ]
    choices = [HOST, *(Choice(gpu, "KExpertsTorch") for gpu in GPUS[:num_gpus])]
    experts = data.draw(st.lists(st.sampled_from(choices), min_size=1, max_size=5))
    assignment, found = placed(name, homes, experts)
    arguments = arguments_of(assignment, found, spec(name))
    assert check_overrides(arguments, list(spec(name).tensors)) == []
    again = parse_arguments(arguments.line(), num_layers=num_layers)
    assert again == arguments
    where = tensor_devices(again, spec(name), GPUS[:num_gpus])
    for layer in spec(name).moe_layers:
        tensor = next(t for t in where if t.startswith(f"blk.{layer}.ffn_down_exps"))
        assert where[tensor] == experts[layer % len(experts)].device
        assert where[f"blk.{layer}.attn_norm.weight"] == homes[layer]
    assert where["token_embd.weight"] == "cpu"
    assert where["output.weight"] == homes[-1]


@pytest.mark.parametrize(
    ("homes", "words"),
    [
        (["cpu", *["cuda:0"] * 59], "a layer must be on a GPU"),
        (["cuda:1"] * 60, "must use cuda:0 to cuda:0"),
        ([*["cuda:0"] * 20, *["cuda:1"] * 20, *["cuda:0"] * 20], "one run of layers"),
    ],
)
def test_what_the_split_cannot_say_is_refused_with_the_reason(homes: list[str], words: str) -> None:
    assignment, found = placed("deepseek-v2", homes, [HOST])
    with pytest.raises(AutoplaceError, match=words):
        arguments_of(assignment, found, spec("deepseek-v2"))


def test_fewer_gpu_layers_leave_the_first_layers_on_the_host() -> None:
    assert layer_devices(Arguments(3), 4, ["cuda:0"]) == ["cpu", "cpu", *["cuda:0"] * 3]
    assert layer_devices(Arguments(0), 2, ["cuda:0"]) == ["cpu"] * 3
    assert layer_devices(Arguments(99, (1, 3)), 3, GPUS[:2]) == ["cuda:0", *["cuda:1"] * 3]


def test_a_pattern_that_matches_nothing_is_an_error_and_so_is_a_shadowed_one() -> None:
    names = list(spec("deepseek-v2").tensors)
    line = "-ngl 99 -ot exps=CPU,ffn_gate_exp_s=CPU --override-tensor blk.3.ffn_up_exps=CUDA0"
    found = check_overrides(parse_arguments(line, num_layers=60), names)
    assert [(finding.code, finding.rule) for finding in found] == [
        ("dead-override", 2),
        ("shadowed-override", 3),
    ]
    assert "ffn_gate_exp_s=CPU matches no tensor" in found[0].message


def test_llama_cpps_own_short_forms_are_read() -> None:
    found = parse_arguments("llama-server -m x.gguf -ngl all -ncmoe 2 -ts 3/1", num_layers=4)
    assert found.num_gpu_layers == 5
    assert found.tensor_split == (3.0, 1.0)
    names = ["blk.1.ffn_gate_up_exps.weight", "blk.1.ffn_down_chexps.weight", "blk.2.ffn_up_exps"]
    fused = [name for name in names if any(re.search(p, name) for p, _ in found.overrides)]
    assert fused == names[:2]


@pytest.mark.parametrize("line", ["-ngl x", "-ot exps", "-ot exps=GPU7", "-ts a,b", "-ot 'x"])
def test_a_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(AutoplaceError):
        parse_arguments(line, num_layers=4)


RUN = RunSettings(8, 512)
LONG = Workload("long", 8000, 192, 8192)


def test_the_same_layers_as_blocks_are_larger_than_marlin() -> None:
    """22 of V2's Q6_K expert layers: 53.8 GB as blocks, 44.1 GB as Marlin (golden-memory)."""
    model = spec("deepseek-v2")
    homes = [GPUS[layer // 30] for layer in range(60)]
    on_gpu = [Choice("cuda:0", "KExpertsMarlin", 4)]
    assignment, found = placed("deepseek-v2", homes, on_gpu)
    plan = plan_llama_cpp(
        model, arguments_of(assignment, found, model), GPUS[:2], workload=LONG, settings=RUN
    )
    experts = 134_686_310_400
    assert plan.by_device["cuda:0"].weights > experts
    assert sum(memory.weights for memory in plan.by_device.values()) == sum(
        info.n_bytes for info in model.tensors.values()
    )


def test_a_window_bounds_the_cache_of_every_other_layer() -> None:
    preset = read_preset("gpt-oss-20b")
    model = spec_from_geometry("gpt-oss-20b", preset.geometry, quant=preset.default_quant)
    sizes = [cache_bytes(model, layer, LONG, "f16") for layer in range(2)]
    assert sizes == [2 * 8 * 64 * 2 * 768, 2 * 8 * 64 * 2 * 8192]


@pytest.mark.parametrize(("split", "width"), [(True, 576), (False, 128 * 320)])
def test_the_cache_of_mla_is_compressed_where_the_file_splits_kv_b(split: bool, width: int) -> None:
    geometry = read_preset("deepseek-v2").geometry
    layout = FileLayout(split_kv_b=split)
    model = spec_from_geometry("m", geometry, quant="q4_k_m", layout=layout)
    assert cache_bytes(model, 3, LONG, "f16") == 2 * width * 8192


def test_published_cache_of_deepseek_v3_comes_out() -> None:
    """65,536 tokens at q8_0: 2333.25 MiB in a published log."""
    preset = read_preset("deepseek-v3")
    layout = FileLayout(split_kv_b=True)
    model = spec_from_geometry("m", preset.geometry, quant="q4_k_m", layout=layout)
    workload = replace(LONG, context_tokens=65536)
    total = sum(cache_bytes(model, layer, workload, "q8_0") for layer in range(61))
    assert total == int(2333.25 * 2**20)
