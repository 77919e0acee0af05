"""Rules to placement: what is none is refused with the reason, near forms are understood."""

import pytest

from autoplace.errors import AutoplaceError
from autoplace.placement.placement import Choice
from autoplace.rules.compile import compile_rules
from autoplace.rules.match import assign
from autoplace.rules.read_back import read_back
from autoplace.rules.rule import Rule
from tests.rules.specs import spec
from tests.rules.test_compile import split

MODEL = "deepseek-v2-lite"
LINEAR = "ktransformers.operators.linear.KTransformersLinear"


def rules_of_a_split() -> list[Rule]:
    return list(compile_rules(split(MODEL, 20), spec(MODEL)))


def first_rule(name: str, replace_class: str = "default", **kwargs: str) -> list[Rule]:
    return [Rule(name, None, replace_class, kwargs), *rules_of_a_split()]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (
            first_rule(r"layers\.3\.self_attn\.o_proj$", LINEAR, generate_op="KLinearTorch"),
            "layer 3: model.layers.3.self_attn.q_proj is KLinearMarlin at 4 bits on cuda:0, "
            "but model.layers.3.self_attn.o_proj is KLinearTorch on cuda:0",
        ),
        (
            first_rule(r"layers\.3\.input_layernorm$", generate_device="cuda:1"),
            "layer 3 is on cuda:0, but model.layers.3.input_layernorm is on cuda:1",
        ),
        (
            first_rule(r"^model\.norm$", generate_device="cuda:0"),
            "model.norm is on cuda:0, but a placement has it on cuda:1",
        ),
        (
            first_rule("embed_tokens", generate_device="cuda:0"),
            "model.embed_tokens is on cuda:0, but a placement has it on cpu",
        ),
        (first_rule(r"layers\.3\.mlp\.experts$"), "routed experts need an operator"),
        (
            [Rule(r"layers\.3$", None, "default", {}, recursive=False), *rules_of_a_split()],
            "no rule reaches model.layers.3.self_attn",
        ),
        (
            first_rule(r"layers\.3\.self_attn\.q_proj$", "ktransformers.operators.gate.KMoEGate"),
            "model.layers.3.self_attn.q_proj is replaced by .*KMoEGate, which has no operator",
        ),
    ],
)
def test_a_file_that_says_more_than_a_placement_is_refused(rules: list[Rule], reason: str) -> None:
    assignment = assign(rules, spec(MODEL), engine="builtin")
    with pytest.raises(AutoplaceError, match=reason):
        read_back(assignment, spec(MODEL))


def test_plain_linears_count_as_torch_on_their_device() -> None:
    placement = read_back(
        assign(
            first_rule(r"layers\.3\.self_attn\.(q|kv_a|o)_proj", generate_device="cuda:0"),
            spec(MODEL),
            engine="builtin",
        ),
        spec(MODEL),
    )
    assert placement.layers[3].attention == Choice("cuda:0", "KLinearTorch")
    assert placement.layers[4].attention == Choice("cuda:0", "KLinearMarlin", 4)


def test_what_is_said_of_prefill_does_not_matter() -> None:
    rules = rules_of_a_split()
    expected = read_back(assign(rules, spec(MODEL), engine="builtin"), spec(MODEL))
    for rule in rules:
        if "prefill_device" in rule.kwargs:
            assert isinstance(rule.kwargs, dict)
            rule.kwargs["prefill_device"] = "cuda:7"
    assert read_back(assign(rules, spec(MODEL), engine="builtin"), spec(MODEL)) == expected
