"""A placement becomes rules, and the rules mean exactly that placement."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoplace.errors import AutoplaceError
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.rules.compile import compile_rules
from autoplace.rules.finding import Severity
from autoplace.rules.lint import lint
from autoplace.rules.match import assign
from autoplace.rules.read import parse_rules
from autoplace.rules.read_back import read_back
from autoplace.rules.write import dump_rules
from tests.rules.placements import placements
from tests.rules.specs import GEOMETRIES, KTRANSFORMERS_FAMILIES, spec

MARLIN, TORCH = Choice("cuda:0", "KLinearMarlin", 4), Choice("cuda:0", "KLinearTorch")
ON_HOST = Choice("cpu", "KExpertsCPU")


def uniform(model: str, device: str = "cuda:0", engine: str = "builtin") -> Placement:
    """All layers alike, experts on the host."""
    linear = Choice("cpu", "KLinearCPUInfer") if device == "cpu" else replace(MARLIN, device=device)
    shape = spec(model)
    has_mlp = shape.geometry.moe is None or shape.geometry.moe.shared_ffn > 0
    layers = [
        LayerPlacement(
            device,
            linear,
            linear if has_mlp or index not in shape.moe_layers else None,
            ON_HOST if index in shape.moe_layers else None,
        )
        for index in range(shape.geometry.num_layers)
    ]
    return Placement(engine, tuple(layers), linear)


def split(model: str, at: int, engine: str = "ktransformers-0.3") -> Placement:
    first, second = uniform(model, "cuda:0", engine), uniform(model, "cuda:1", engine)
    return replace(second, layers=first.layers[:at] + second.layers[at:])


@pytest.mark.parametrize("model", GEOMETRIES)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_compiled_reads_back_as_the_same_placement(model: str, data: st.DataObject) -> None:
    placement = data.draw(placements(spec(model), "builtin"))
    body = dump_rules(compile_rules(placement, spec(model)))
    rules = parse_rules(body, source="body").rules
    assignment = assign(rules, spec(model), engine="builtin")
    assert read_back(assignment, spec(model)) == placement
    errors = [f for f in lint(assignment, spec(model), rules=rules) if f.severity is Severity.ERROR]
    assert errors == []


@pytest.mark.parametrize("model", KTRANSFORMERS_FAMILIES)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_ktransformers_placements_read_back_too(model: str, data: st.DataObject) -> None:
    placement = data.draw(placements(spec(model), "ktransformers-0.3"))
    rules = compile_rules(placement, spec(model))
    assignment = assign(rules, spec(model), engine=placement.engine)
    assert read_back(assignment, spec(model)) == placement
    findings = lint(assignment, spec(model), rules=rules)
    assert [f for f in findings if f.severity is not Severity.ADVICE] == []


def test_the_same_placement_gives_the_same_bytes() -> None:
    placement = split("deepseek-v3", 30)
    bodies = {dump_rules(compile_rules(placement, spec("deepseek-v3"))) for _ in range(3)}
    assert len(bodies) == 1


def test_a_split_is_written_as_people_write_it() -> None:
    rules = compile_rules(split("deepseek-v2-lite", 20), spec("deepseek-v2-lite"))
    names = [rule.name for rule in rules]
    first, second = ("|".join(map(str, r)) for r in (range(20), range(20, 27)))
    assert names[0] == rf"^model\.layers\.(?:{first})\.self_attn\.rotary_emb$"
    assert rf"^model\.layers\.(?:{second})\.mlp\.experts$" in names
    assert names[-1] == rf"(^model\.layers\.(?:{second})\.)|(^model\.norm)"
    model = next(rule for rule in rules if rule.name == "^model$")
    assert model.kwargs == {
        "per_layer_prefill_intput_threshold": 0,
        "transfer_map": {20: "cuda:1"},
    }


def test_experts_on_gpus_come_before_those_on_the_host_and_nothing_is_visited_below() -> None:
    placement = uniform("deepseek-v2-lite")
    on_gpu = replace(placement.layers[26], experts=Choice("cuda:0", "KExpertsMarlin", 8))
    placement = replace(placement, layers=(*placement.layers[:26], on_gpu))
    rules = compile_rules(placement, spec("deepseek-v2-lite"))
    experts = [rule for rule in rules if rule.replace_class.endswith("KTransformersExperts")]
    assert [rule.kwargs["generate_device"] for rule in experts] == ["cuda:0", "cpu"]
    assert [rule.kwargs.get("num_bits") for rule in experts] == [8, None]
    assert not any(rule.recursive for rule in experts)


@pytest.mark.parametrize("model", GEOMETRIES)
def test_a_machine_without_gpus_gets_no_gpu_and_no_transfer_map(model: str) -> None:
    body = dump_rules(compile_rules(uniform(model, "cpu"), spec(model)))
    assert "cuda" not in body
    assert "transfer_map" not in body


def with_head(head: Choice) -> Placement:
    return replace(uniform("deepseek-v2"), lm_head=head)


@pytest.mark.parametrize(
    ("make", "model", "reason"),
    [
        (lambda: uniform("deepseek-v2"), "deepseek-v3", "has 60 layers, but deepseek-v3 has 61"),
        (
            lambda: replace(uniform("deepseek-v2"), engine="bultin"),
            "deepseek-v2",
            "did you mean 'builtin'",
        ),
        (
            lambda: uniform("deepseek-v2", "cpu", "ktransformers-0.3"),
            "deepseek-v2",
            "must be on a GPU",
        ),
        (lambda: split("mixtral-8x7b", 8), "mixtral-8x7b", "cannot split llama over cuda:0, cuda"),
        (
            lambda: uniform("qwen3-30b-a3b", "cuda:0", "ktransformers-0.2.1"),
            "qwen3-30b-a3b",
            "no rules for qwen3moe; ktransformers-0.3 and ktransformers-0.3.2 have",
        ),
        (
            lambda: uniform("qwen3-30b-a3b", "cuda:1", "ktransformers-0.3"),
            "qwen3-30b-a3b",
            "the server .balance_serve. runs on cuda:0 only",
        ),
        (
            lambda: uniform("smollm2-135m", "cuda:0", "ktransformers-0.3"),
            "smollm2-135m",
            "no rules for llama$",
        ),
        (
            lambda: with_head(Choice("cpu", "KLinearMarlin", 4)),
            "deepseek-v2",
            "lm_head: KLinearMarlin does not run on cpu",
        ),
        (
            lambda: with_head(Choice("cuda:0", "KExpertsCPU")),
            "deepseek-v2",
            "lm_head has no operator 'KExpertsCPU'",
        ),
        (
            lambda: with_head(Choice("cuda:0", "KLinearMarlin", 5)),
            "deepseek-v2",
            "4 or 8 bits, but got 5",
        ),
        (
            lambda: with_head(Choice("cuda:0", "KLinearTorch", 4)),
            "deepseek-v2",
            "KLinearTorch has no num_bits",
        ),
    ],
)
def test_what_an_engine_cannot_express_is_refused_with_the_reason(
    make: Callable[[], Placement], model: str, reason: str
) -> None:
    with pytest.raises(AutoplaceError, match=reason):
        compile_rules(make(), spec(model))


@pytest.mark.parametrize(
    ("engine", "choice", "reason"),
    [
        (
            "ktransformers-0.3.2",
            Choice("cuda:0", "KExpertsMarlin", 4),
            "cannot load in this version, but KExpertsCPU",
        ),
        (
            "ktransformers-0.2.1",
            Choice("cuda:0", "KExpertsTorch"),
            "but KExpertsCPU, KExpertsMarlin",
        ),
        ("ktransformers-0.3", Choice("cuda:0", "KExpertsMarlin", 8), "num_bits does not reach"),
        ("ktransformers-0.3", Choice("cpu", "KExpertsTorch"), "need KExpertsCPU"),
    ],
)
def test_each_version_of_ktransformers_has_its_own_limits(
    engine: str, choice: Choice, reason: str
) -> None:
    placement = uniform("deepseek-v2-lite", "cuda:0", engine)
    layers = (
        placement.layers[0],
        *(replace(layer, experts=choice) for layer in placement.layers[1:]),
    )
    with pytest.raises(AutoplaceError, match=reason):
        compile_rules(replace(placement, layers=layers), spec("deepseek-v2-lite"))
