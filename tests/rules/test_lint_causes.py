"""One cause is one finding, whatever follows from it."""

import re
from collections.abc import Callable

import pytest

from autoplace.rules.finding import Severity
from tests.rules.two_gpus import LATER, SECOND, check, entry, only, sub, v2_on_two_gpus

V3 = "ktransformers.models.modeling_deepseek_v3.DeepseekV3"
CATCH_ALL = entry(r"^model\.layers\.", "", "default", "cuda:0", "prefill_device: cuda:0")


@pytest.mark.parametrize(
    ("mutate", "code", "rules", "layers"),
    [
        (sub(f"(?:{SECOND})", "([30-59])"), "number-range", (3, 5, 7, 9, 11, 14), LATER),
        (sub("        30: cuda:1", "        '30': cuda:1"), "transfer-key", (), LATER),
        (sub("        30: cuda:1", "        31: cuda:1"), "transfer-layer", (), [30]),
        (sub("        30: cuda:1", "        27: cuda:1"), "transfer-layer", (), range(27, 30)),
        (
            sub("      transfer_map:\n        30: cuda:1\n", ""),
            "no-transfer-map",
            (),
            LATER,
        ),
        (sub("recursive: false", "recursive: 'no'"), "bad-recursive", (8, 9), range(1, 60)),
        (sub("recursive: false", "recursive: true"), "experts-recursive", (8, 9), range(1, 60)),
        (sub("(?!self_attn\\.kv_b_proj$).*", ".*"), "kv-b-replaced", (4, 5), range(60)),
        (sub("generate_op: KL", "generate_opp: KL"), "unknown-option", (4, 5), range(60)),
        (sub("      out_device: cuda:1\n", ""), "out-device", (), LATER),
        (
            sub("      per_layer_prefill_intput_threshold: 0\n", ""),
            "layerwise-prefill",
            (),
            [],
        ),
        (
            sub("|(^model\\.norm)|(^lm_head)", ""),
            "wrong-device",
            (),
            [],
        ),
        (
            sub(
                "default\n    kwargs:\n      generate_device: cuda:1\n      prefill_device: cuda:1",
                "default\n    kwargs:\n      generate_device: cuda:0\n      prefill_device: cuda:0",
            ),
            "wrong-device",
            (),
            LATER,
        ),
    ],
)
def test_one_cause_is_one_finding(
    mutate: Callable[[str], str], code: str, rules: tuple[int, ...], layers: range | list[int]
) -> None:
    finding = only(mutate(v2_on_two_gpus()), code)
    assert finding.rules == rules
    assert finding.layers == tuple(layers)
    assert finding.effect
    assert finding.remedy


def test_rules_that_others_stand_in_front_of_are_one_finding_that_names_them() -> None:
    parts = v2_on_two_gpus().split("- match:")
    experts = [part for part in parts if "KTransformersExperts" in part]
    finding = only(v2_on_two_gpus() + "- match:".join(["", *experts]), "shadowed-rule")
    assert finding.rules == (15, 16)
    assert "rules 8-9" in finding.message


@pytest.mark.parametrize(
    ("mutate", "code", "rules", "remedy"),
    [
        (
            sub("ktransformers.models.modeling_deepseek.DeepseekV2", V3),
            "foreign-match",
            (2, 3, 6, 7),
            "modeling_deepseek.DeepseekV2YarnRotaryEmbedding and ",
        ),
        (sub("_device: cuda:1", "_device: cuda1"), "bad-device", (3, 5, 7, 9, 11, 14), "cuda:1"),
        (sub("        30: cuda:1", "        30: cpu"), "transfer-device", (), '{30: "cuda:1"}'),
        (
            lambda text: re.sub(r"- match: {name: \^model\$}.*?(?=- match:)", "", text, flags=re.S),
            "no-model-rule",
            (),
            "replace it by ktransformers.operators.models.KDeepseekV2Model",
        ),
    ],
)
def test_a_mistake_with_many_consequences_is_one_finding(
    mutate: Callable[[str], str], code: str, rules: tuple[int, ...], remedy: str
) -> None:
    finding = only(mutate(v2_on_two_gpus()), code)
    assert finding.rules == rules
    assert remedy in finding.remedy
    assert finding.severity is Severity.ERROR


def test_a_default_rule_in_front_is_named_as_the_cause_with_the_rules_behind_it() -> None:
    found = check(CATCH_ALL + v2_on_two_gpus(), engine="ktransformers-0.3")
    (finding,) = [one for one in found if one.code == "default-first"]
    assert (finding.rule, finding.layers) == (1, tuple(range(60)))
    assert "before rules 3-12, which would replace them" in finding.message
    assert not [one for one in found if one.code.endswith("-plain")]
    assert not [one for one in found if set(one.all_rules) & set(range(3, 13))]


@pytest.mark.parametrize("text", ["a: b\n", "- {a: 1\n", "- a\n\tb"])
def test_of_a_file_that_cannot_be_read_only_that_is_said(text: str) -> None:
    (finding,) = check(text, engine="ktransformers-0.3")
    assert finding.code in ("not-yaml", "not-a-list")


def test_a_rule_for_a_class_that_the_model_lacks_says_which() -> None:
    gate = entry("mlp$", "ktransformers.models.modeling_deepseek_v3.MoEGate", "default", "cuda:0")
    finding = only(v2_on_two_gpus() + gate, "dead-rule")
    assert "deepseek-v2: it has no MoEGate" in finding.message


def test_a_default_rule_without_keywords_is_a_key_error_to_come() -> None:
    text = v2_on_two_gpus() + "- {match: {name: x}, replace: {class: default}}\n"
    good = text.replace("- match:\n    name: ^model\\.embed", "- match:\n    name: ^modl\\.embed")
    found = check(good.replace("{name: x}", "{name: ^model.embed}"), engine="ktransformers-0.3")
    assert {finding.code for finding in found} == {"no-device", "dead-rule", "embedding-on-gpu"}
    assert any("KeyError" in finding.effect for finding in found)


def test_a_number_of_a_rule_counts_rules_that_could_not_be_read() -> None:
    broken = "- match: {name: '([4-10])'}\n  replace: {class: default}\n"
    text = broken + v2_on_two_gpus().replace("        30: cuda:1", "        31: cuda:1")
    found = check(text, engine="ktransformers-0.3")
    assert [(finding.code, finding.rule) for finding in found] == [
        ("bad-pattern", 1),
        ("transfer-layer", 13),
    ]
    assert "(?:4|5|…|10)" in found[0].remedy


def test_a_number_without_an_end_finds_layers_of_two_digits_too() -> None:
    text = (
        "- match: {name: '^model.layers.1'}\n  replace: {class: default, kwargs: "
        "{generate_device: cuda:0, prefill_device: cuda:0}}\n"
    )
    found = [f for f in check(text, engine="ktransformers-0.3") if f.code == "open-ended-pattern"]
    assert [finding.layers for finding in found] == [tuple(range(10, 20))]
    closed = text.replace("layers.1'", "layers.1\\.'")
    assert "open-ended-pattern" not in {f.code for f in check(closed, engine="ktransformers-0.3")}


def test_a_layer_that_no_pattern_names_is_one_finding_wherever_it_falls() -> None:
    text = v2_on_two_gpus().replace(f"(?:{SECOND})", f"(?:{SECOND.replace('|45|', '|')})")
    finding = only(text, "unmatched")
    assert finding.layers == (45,)
    assert finding.severity is Severity.ERROR
    assert "stay plain on cuda:0" in finding.message
    assert "the activations are on cuda:1" in finding.effect


@pytest.mark.parametrize("engine", ["builtin", "ktransformers-0.3"])
def test_what_a_catch_all_leaves_on_the_first_gpu_has_strayed_not_its_layer(engine: str) -> None:
    text = v2_on_two_gpus()
    head, _, tail = text.rpartition("default\n")
    finding = only(
        f"{head}default\n{tail.replace('cuda:1', 'cuda:0')}", "wrong-device", engine=engine
    )
    assert finding.layers == tuple(LATER)
    for name in ("model.norm", "lm_head", "self_attn.kv_b_proj"):
        assert name in finding.message
