"""The walk: which rule gets which module, as KTransformers' own code does it."""

import re

import pytest

from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment
from autoplace.rules.match import Matcher, assign
from autoplace.rules.rule import Rule
from tests.rules.specs import spec

LINEAR = "torch.nn.Linear"
WRAPPED = "ktransformers.operators.linear.KTransformersLinear"
EXPERTS = "ktransformers.operators.experts.KTransformersExperts"


def on(device: str) -> dict[str, str]:
    return {"generate_device": device, "prefill_device": device}


def walk(*rules: Rule, model: str = "deepseek-v2-lite") -> Assignment:
    return assign(rules, spec(model), engine="builtin")


def test_without_rules_everything_stays_plain_on_the_first_gpu() -> None:
    found = walk()
    assert {entry.device for entry in found.modules.values()} == {"cuda:0"}
    assert {entry.rule for entry in found.modules.values()} == {None}
    assert found.modules["model.layers.3.mlp.experts.63.up_proj"].class_name is None


def test_the_first_rule_that_matches_wins_and_later_ones_add_nothing() -> None:
    found = walk(
        Rule("self_attn", None, "default", on("cuda:1")),
        Rule("q_proj", LINEAR, WRAPPED, on("cuda:2")),
    )
    entry = found.modules["model.layers.0.self_attn.q_proj"]
    assert (entry.rule, entry.device, entry.class_name) == (0, "cuda:1", None)


def test_names_are_searched_not_matched_whole() -> None:
    found = walk(Rule("layers.1", None, "default", on("cuda:1")))
    matched = {path for path, entry in found.modules.items() if entry.rule == 0}
    assert {"model.layers.1", "model.layers.10.mlp", "model.layers.19.self_attn"} <= matched
    assert "model.layers.2" not in matched


def test_a_pattern_with_a_trailing_dot_misses_the_layer_itself() -> None:
    found = walk(Rule(r"^model\.layers\.0\.", None, "default", on("cuda:1")))
    assert found.modules["model.layers.0"].rule is None
    assert found.modules["model.layers.0.self_attn"].rule == 0


@pytest.mark.parametrize(
    ("match_class", "path"),
    [
        (LINEAR, "lm_head"),
        ("torch.nn.modules.linear.Linear", "lm_head"),
        (
            "ktransformers.models.modeling_deepseek.DeepseekV2RotaryEmbedding",
            "model.layers.4.self_attn.rotary_emb",
        ),
        ("torch.nn.Module", "model.norm"),
    ],
)
def test_classes_match_by_isinstance(match_class: str, path: str) -> None:
    found = walk(Rule(None, match_class, "default", on("cuda:1")))
    assert found.modules[path].rule == 0


def test_name_and_class_must_both_match() -> None:
    found = walk(Rule("self_attn", LINEAR, "default", on("cuda:1")))
    assert found.modules["model.layers.0.self_attn"].rule is None
    assert found.modules["model.layers.0.self_attn.o_proj"].rule == 0
    assert found.modules["model.layers.0.mlp.up_proj"].rule is None


def test_recursive_false_leaves_no_trace_of_what_is_below() -> None:
    found = walk(Rule(r"mlp\.experts$", None, EXPERTS, {}, recursive=False))
    assert found.modules["model.layers.1.mlp.experts"].rule == 0
    assert not [path for path in found.modules if ".experts." in path]
    assert "model.layers.1.mlp.shared_experts.up_proj" in found.modules


def test_recursive_false_on_the_root_ends_the_walk() -> None:
    assert list(walk(Rule("^$", None, "default", {}, recursive=False)).modules) == [""]


def test_wrappers_have_their_own_defaults() -> None:
    found = walk(
        Rule("^lm_head$", None, WRAPPED, {}),
        Rule(r"mlp\.experts$", None, EXPERTS, {}, recursive=False),
        Rule("q_proj", None, WRAPPED, {"generate_device": "cuda", "generate_op": "KLinearTorch"}),
    )
    head, experts = found.modules["lm_head"], found.modules["model.layers.1.mlp.experts"]
    assert (head.device, head.operator) == ("cuda:0", "KLinearMarlin")
    assert (experts.device, experts.operator) == ("cpu", "KExpertsCPU")
    query = found.modules["model.layers.1.self_attn.q_proj"]
    assert (query.device, query.operator) == ("cuda:0", "KLinearTorch")
    assert query.kwargs == {"generate_device": "cuda", "generate_op": "KLinearTorch"}


@pytest.mark.parametrize("pattern", [r"experts\.7\.", r"experts\.\d\.up", r"experts\.(?:1|2)\d"])
def test_a_pattern_that_tells_experts_apart_is_asked_about_each(pattern: str) -> None:
    found = walk(Rule(pattern, None, "default", on("cuda:1")))
    matched = {path for path, entry in found.modules.items() if entry.rule == 0}
    expected = {path for path in found.modules if re.search(pattern, path)}
    assert matched == expected
    assert matched


def test_an_invalid_pattern_is_named_with_its_line() -> None:
    with pytest.raises(AutoplaceError, match=r"line 7: the pattern '\[4-10\]': bad character"):
        walk(Rule("[4-10]", None, "default", {}, line=7))


def test_one_expert_is_asked_for_all_that_no_pattern_tells_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, first = [], Matcher.first

    def noted(self: Matcher, path: str, class_name: str) -> int | None:
        asked.append(path)
        return first(self, path, class_name)

    monkeypatch.setattr(Matcher, "first", noted)
    found = walk(Rule(r"^model\.layers\.\d+\.", None, "default", on("cuda:1")), model="deepseek-v3")
    numbers = {path.partition(".experts.")[2].partition(".")[0] for path in asked}
    assert numbers == {"", "0"}
    assert found.modules["model.layers.60.mlp.experts.255.up_proj"].rule == 0
