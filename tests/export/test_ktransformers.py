"""One placement for every version of KTransformers, or the reason why not."""

from dataclasses import replace

import pytest

from autoplace.errors import AutoplaceError, DoesNotFitError
from autoplace.export.ktransformers import rule_body_for
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.rules.lint import examine
from autoplace.rules.read import parse_rules
from autoplace.workload import Workload
from tests.rules.specs import KTRANSFORMERS_FAMILIES, spec

GIB = 1024**3
VERSIONS = ("ktransformers-0.2.1", "ktransformers-0.3", "ktransformers-0.3.2")
HOST = Choice("cpu", "KExpertsCPU")


def machine(gpu_gib: int = 48, host_gib: int = 1024) -> Machine:
    gpus = (Device(f"cuda:{i}", "GPU", gpu_gib * GIB, 0, 1e12, 1e14, (8, 6)) for i in range(2))
    return Machine("m", (Device("cpu", "host", host_gib * GIB, 0, 1e11, 1e12), *gpus))


def placement(name: str, experts: Choice = HOST, num_gpus: int = 2) -> Placement:
    """As the builtin engine runs it: Torch linears, so that no dimension is odd for 0.2.1."""
    model = spec(name)
    half = model.geometry.num_layers // 2
    roles = {module.role.value for module in model.modules}
    layers = []
    for index in range(model.geometry.num_layers):
        gpu = "cuda:0" if index < half or num_gpus == 1 else "cuda:1"
        linear = Choice(gpu, "KLinearTorch")
        has_mlp = "shared_linear" in roles or index not in model.moe_layers
        layers.append(
            LayerPlacement(
                gpu,
                linear,
                linear if has_mlp else None,
                experts if index in model.moe_layers else None,
            )
        )
    return Placement("builtin", tuple(layers), Choice(layers[-1].device, "KLinearTorch"))


def body(engine: str, name: str, placed: Placement, on: Machine) -> str:
    return rule_body_for(
        engine,
        placed,
        spec(name),
        on,
        workload=Workload("chat", 128, 32, 160),
        settings=RunSettings(8, 512),
    )


@pytest.mark.parametrize("engine", VERSIONS)
@pytest.mark.parametrize("name", KTRANSFORMERS_FAMILIES)
def test_every_split_family_gets_a_clean_file_for_every_version(name: str, engine: str) -> None:
    text = body(engine, name, placement(name), machine())
    found = examine(parse_rules(text, source="t"), spec(name), engine=engine, machine=machine())
    assert found.findings == ()


@pytest.mark.parametrize("engine", VERSIONS)
def test_mixtral_goes_on_one_gpu_and_is_refused_on_two(engine: str) -> None:
    assert body(engine, "mixtral-8x7b", placement("mixtral-8x7b", num_gpus=1), machine())
    with pytest.raises(AutoplaceError, match="cannot split llama over cuda:0, cuda:1"):
        body(engine, "mixtral-8x7b", placement("mixtral-8x7b"), machine())


@pytest.mark.parametrize("engine", VERSIONS[1:])
def test_qwen3_gets_a_clean_file_for_the_server_on_one_gpu(engine: str) -> None:
    text = body(engine, "qwen3-30b-a3b", placement("qwen3-30b-a3b", num_gpus=1), machine())
    read = parse_rules(text, source="t")
    found = examine(read, spec("qwen3-30b-a3b"), engine=engine, machine=machine())
    assert found.findings == ()
    assert "experts.KTransformersExpertsV2" in text
    with pytest.raises(AutoplaceError, match="cannot split qwen3moe over cuda:0, cuda:1"):
        body(engine, "qwen3-30b-a3b", placement("qwen3-30b-a3b"), machine())


SERVED = {
    "no norms": ("layernorm.KQwen3MoeRMSNorm", "unmatched|norm-plain|plain-in-server"),
    "no router": ("mlp.gate", "plain-in-server"),
    "no lm_head": ("^lm_head$", "plain-in-server"),
    "no attention": ("self_attn$", "unmatched"),
}


@pytest.mark.parametrize("name", SERVED)
def test_what_the_server_does_not_take_plain_is_an_error(name: str) -> None:
    word, codes = SERVED[name]
    text = body(
        "ktransformers-0.3", "qwen3-30b-a3b", placement("qwen3-30b-a3b", num_gpus=1), machine()
    )
    rules = [
        rule
        for rule in text.split("- match:")
        if word.replace(".", "\\.") not in rule and word not in rule
    ]
    read = parse_rules("- match:".join(rules), source="t")
    found = examine(read, spec("qwen3-30b-a3b"), engine="ktransformers-0.3", machine=machine())
    assert found.findings
    assert {finding.code for finding in found.findings} <= set(codes.split("|"))
    assert found.has_errors


def test_local_chats_experts_are_an_error_in_the_server() -> None:
    text = body(
        "ktransformers-0.3", "qwen3-30b-a3b", placement("qwen3-30b-a3b", num_gpus=1), machine()
    )
    read = parse_rules(text.replace("KTransformersExpertsV2", "KTransformersExperts"), source="t")
    (finding,) = examine(read, spec("qwen3-30b-a3b"), engine="ktransformers-0.3").findings
    assert finding.code == "chat-class"
    assert finding.layers == tuple(range(48))


def test_experts_on_gpus_are_refused_where_the_version_cannot_load_them() -> None:
    placed = placement("deepseek-v2", Choice("cuda:0", "KExpertsTorch"))
    for engine in ("ktransformers-0.2.1", "ktransformers-0.3.2"):
        with pytest.raises(AutoplaceError, match="KExpertsTorch cannot load in this version"):
            body(engine, "deepseek-v2", placed, machine())


def test_what_does_not_fit_the_engines_memory_profile_is_refused_with_its_bytes() -> None:
    placed = placement("deepseek-v2", Choice("cuda:0", "KExpertsTorch"))
    with pytest.raises(DoesNotFitError, match=r"cannot hold this placement: cuda:0 needs .* B\)"):
        body("ktransformers-0.3", "deepseek-v2", placed, machine())
    with pytest.raises(DoesNotFitError, match="cpu needs"):
        body("ktransformers-0.3", "deepseek-v2", placement("deepseek-v2"), machine(host_gib=64))


def test_the_placement_itself_is_left_as_it_was() -> None:
    placed = placement("deepseek-v2")
    body("ktransformers-0.3", "deepseek-v2", placed, machine())
    assert placed == replace(placed, engine="builtin")
