"""Mistakes that people publish in rule files, found by simulating the walk."""

import re
from collections.abc import Callable

import pytest

from autoplace.errors import AutoplaceError
from autoplace.rules.finding import Severity, ranges
from autoplace.rules.lint import lint, refuse_unrunnable
from autoplace.rules.match import assign
from autoplace.rules.read import read_rules
from tests.rules.specs import spec
from tests.rules.two_gpus import FIRST, LATER, SECOND, TWO_GPUS, check, sub, v2_on_two_gpus


@pytest.mark.parametrize(
    "engine", ["builtin", "ktransformers-0.2.1", "ktransformers-0.3", "ktransformers-0.3.2"]
)
def test_a_good_file_has_no_finding(engine: str) -> None:
    assert check(v2_on_two_gpus(), engine=engine) == []


@pytest.mark.parametrize(
    ("mutate", "engine", "code", "layers", "words"),
    [
        (sub(f"(?:{FIRST})", "([0-2][0-9])"), "builtin", "unmatched", range(10), "no rule matches"),
        (sub(f"(?:{SECOND})", "([30-59])"), "builtin", "number-range", LATER, "two-digit numbers"),
        (sub(f"(?:{SECOND})", "([30-59])"), "builtin", "number-range", LATER, "dead rules"),
        (sub(f"(?:{SECOND})", "([59-30])"), "builtin", "bad-pattern", (), "bad character range"),
        (sub("        30: cuda:1", "        '30': cuda:1"), "builtin", "transfer-key", (), "'30'"),
        (sub("        30: cuda:1", "        '30': cuda:1"), "builtin", "transfer-key", LATER, ""),
        (
            sub("        30: cuda:1", "        31: cuda:1"),
            "builtin",
            "transfer-layer",
            [30],
            "move before layer 31 only",
        ),
        (sub("        30: cuda:1", "        90: cuda:1"), "builtin", "transfer-key", (), "0 to 59"),
        (sub("        30: cuda:1", "        30: cuda"), "builtin", "transfer-device", (), "cuda:N"),
        (sub("recursive: false", "recursive: 'False'"), "builtin", "bad-recursive", (), "true or"),
        (
            sub("recursive: false", "recursive: true"),
            "builtin",
            "experts-recursive",
            LATER,
            "recursive: false",
        ),
        (sub("      out_device: cuda:1\n", ""), "builtin", "out-device", LATER, "cuda:0"),
        (sub("(?!self_attn\\.kv_b_proj$).*", ".*"), "builtin", "kv-b-replaced", LATER, "plain"),
        (sub("generate_op: KLinear", "generate_opp: KLinear"), "builtin", "unknown-option", (), ""),
        (
            sub("      per_layer_prefill_intput_threshold: 0\n", ""),
            "builtin",
            "layerwise-prefill",
            (),
            "30000",
        ),
        (
            sub("generate_device: cpu\n      prefill_device: cpu", "generate_device: cuda:0"),
            "builtin",
            "embedding-on-gpu",
            (),
            "cuda:0",
        ),
        (
            sub("|(^model\\.norm)|(^lm_head)", ""),
            "builtin",
            "wrong-device",
            (),
            "model.norm, lm_head are on cuda:0, but the activations are on cuda:1",
        ),
        (
            sub("generate_op: KExpertsCPU", "generate_op: KExpertsMarlin"),
            "builtin",
            "operator-device",
            LATER,
            "KExpertsMarlin runs on a gpu, not on cpu",
        ),
        (
            sub("generate_op: KExpertsCPU", "generate_op: KExpertCPU"),
            "builtin",
            "unknown-operator",
            LATER,
            "did you mean 'KExpertsCPU'",
        ),
        (
            sub("generate_op: KLinearMarlin", "num_bits: 3"),
            "builtin",
            "bad-option",
            LATER,
            "num_bits must be 4 or 8, but got 3",
        ),
        (
            sub("prefill_op: KExpertsTorch", "prefill_op: null"),
            "ktransformers-0.3",
            "prefill-operator",
            LATER,
            "write prefill_op: KExpertsTorch",
        ),
        (
            sub("class: ktransformers.operators.RoPE.YarnRotaryEmbedding", "class: default"),
            "ktransformers-0.3",
            "rotary-plain",
            LATER,
            "YarnRotaryEmbedding",
        ),
        (
            sub(r"mlp\.experts$", r"mlp\.(experts|shared_experts)$"),
            "builtin",
            "wrong-class",
            LATER,
            "for a layer's routed experts",
        ),
        (sub("cuda:1", "cuda:5"), "builtin", "no-such-device", LATER, "has cpu, cuda:0, cuda:1"),
        (
            sub(
                "attention.KDeepseekV2Attention\n    kwargs:\n      generate_device: cuda:1",
                "attention.KDeepseekV2Attention\n    kwargs:\n      generate_device: cuda:0",
            ),
            "builtin",
            "wrong-device",
            LATER,
            "self_attn is on cuda:0, but the activations are on cuda:1",
        ),
    ],
)
def test_a_published_mistake_is_found_with_its_layers(
    mutate: Callable[[str], str],
    engine: str,
    code: str,
    layers: range | tuple[int, ...],
    words: str,
) -> None:
    found = [f for f in check(mutate(v2_on_two_gpus()), engine=engine) if f.code == code]
    assert found
    assert any(set(f.layers) >= set(layers) if layers else True for f in found), found
    assert any(words in str(f) for f in found), [str(f) for f in found]


def test_the_first_few_errors_are_refused_in_one_line_with_rule_and_line() -> None:
    text = v2_on_two_gpus().replace("        30: cuda:1", "        31: cuda:1")
    text = text.replace("(?!self_attn\\.kv_b_proj$).*", ".*")
    rules = read_rules(text, source="mine.yaml").rules
    assignment = assign(rules, spec("deepseek-v2"), engine="builtin")
    with pytest.raises(AutoplaceError, match=r"^mine.yaml: rules 4-5, lines \d+, \d+, ") as caught:
        refuse_unrunnable(
            assignment, spec("deepseek-v2"), TWO_GPUS, rules=rules, source="mine.yaml"
        )
    message = str(caught.value)
    assert "\n" not in message
    assert message.count(" | ") == 1
    number, line = map(int, re.findall(r"rule (\d+), line (\d+)", message)[0])
    assert text.splitlines()[line - 1] == "- match: {name: ^model$}"
    assert rules[number - 1].line == line


def test_a_good_file_is_not_refused_and_warnings_alone_do_not_refuse() -> None:
    text = v2_on_two_gpus().replace("      per_layer_prefill_intput_threshold: 0\n", "")
    rules = read_rules(text, source="mine.yaml").rules
    assignment = assign(rules, spec("deepseek-v2"), engine="builtin")
    refuse_unrunnable(assignment, spec("deepseek-v2"), TWO_GPUS)
    found = lint(assignment, spec("deepseek-v2"), machine=TWO_GPUS)
    assert [finding.severity for finding in found] == [Severity.WARNING]


def test_layers_are_shown_as_ranges() -> None:
    assert ranges([5, 0, 1, 2, 7, 8]) == "0-2, 5, 7-8"
