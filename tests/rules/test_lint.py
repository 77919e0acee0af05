"""Mistakes that people publish in rule files, found by simulating the walk."""

import re
from collections.abc import Callable

import pytest

from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Device, Machine
from autoplace.rules.finding import Finding, Severity, ranges
from autoplace.rules.lint import examine, lint, refuse_unrunnable
from autoplace.rules.match import assign
from autoplace.rules.read import read_rules
from tests.rules.specs import spec

GIB = 1024**3


def gpu(index: int, capability: tuple[int, int] = (8, 6)) -> Device:
    return Device(f"cuda:{index}", "RTX", 48 * GIB, 0, 7e11, 1e14, capability)


CPU = Device("cpu", "EPYC", 192 * GIB, 0, 2e11, 1e12)
TWO_GPUS = Machine("2xa6000", (CPU, gpu(0), gpu(1)))
FIRST, SECOND = "|".join(map(str, range(30))), "|".join(map(str, range(30, 60)))


def entry(
    name: str, cls: str, replace_class: str, device: str, *more: str, recursive: str = ""
) -> str:
    lines = ["- match:", f"    name: {name}"]
    lines += [f"    class: {cls}"] if cls else []
    lines += ["  replace:", f"    class: {replace_class}", "    kwargs:"]
    lines += [f"      generate_device: {device}", *(f"      {option}" for option in more)]
    lines += [f"  recursive: {recursive}"] if recursive else []
    return "\n".join(lines) + "\n"


def v2_on_two_gpus() -> str:
    """DeepSeek-V2 as people write it by hand: 30 layers a GPU, all experts on the host."""
    theirs, ours = "ktransformers.models.modeling_deepseek.DeepseekV2", "ktransformers.operators."
    both = ((FIRST, "cuda:0"), (SECOND, "cuda:1"))

    def each(rest: str, cls: str, replace_class: str, *more: str, recursive: str = "") -> str:
        return "".join(
            entry(
                rf"^model\.layers\.(?:{layers})\.{rest}",
                cls,
                replace_class,
                "cpu" if "Experts" in replace_class else device,
                f"prefill_device: {device}",
                *(option.format(device=device) for option in more),
                recursive=recursive,
            )
            for layers, device in both
        )

    return "".join(
        [
            entry(r"^model\.embed_tokens$", "", "default", "cpu", "prefill_device: cpu"),
            each("", f"{theirs}YarnRotaryEmbedding", f"{ours}RoPE.YarnRotaryEmbedding"),
            each(
                r"(?!self_attn\.kv_b_proj$).*$",
                "torch.nn.Linear",
                f"{ours}linear.KTransformersLinear",
                "generate_op: KLinearMarlin",
                "prefill_op: KLinearTorch",
            ),
            each("mlp$", f"{theirs}MoE", f"{ours}experts.KDeepseekV2MoE"),
            each(
                r"mlp\.experts$",
                "",
                f"{ours}experts.KTransformersExperts",
                "generate_op: KExpertsCPU",
                "prefill_op: KExpertsTorch",
                "out_device: {device}",
                recursive="false",
            ),
            each("self_attn$", "", f"{ours}attention.KDeepseekV2Attention"),
            "- match: {name: ^model$}\n"
            f"  replace:\n    class: {ours}models.KDeepseekV2Model\n    kwargs:\n"
            "      per_layer_prefill_intput_threshold: 0\n"
            "      transfer_map:\n        30: cuda:1\n",
            entry(
                rf"^model\.layers\.(?:{FIRST})\.", "", "default", "cuda:0", "prefill_device: cuda:0"
            ),
            entry(
                rf"(^model\.layers\.(?:{SECOND})\.)|(^model\.norm)|(^lm_head)",
                "",
                "default",
                "cuda:1",
                "prefill_device: cuda:1",
            ),
        ]
    )


def check(text: str, *, engine: str = "builtin", machine: Machine = TWO_GPUS) -> list[Finding]:
    read = read_rules(text, source="mine.yaml")
    return list(examine(read, spec("deepseek-v2"), engine=engine, machine=machine).findings)


@pytest.mark.parametrize(
    "engine", ["builtin", "ktransformers-0.2.1", "ktransformers-0.3", "ktransformers-0.3.2"]
)
def test_a_good_file_has_no_finding(engine: str) -> None:
    assert check(v2_on_two_gpus(), engine=engine) == []


def sub(old: str, new: str) -> Callable[[str], str]:
    """A mutation of the good file; it must change something."""

    def mutate(text: str) -> str:
        assert old in text, old
        return text.replace(old, new)

    return mutate


LATER = range(30, 60)


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


def test_experts_on_a_gpu_cost_the_cuda_graphs_in_ktransformers_only() -> None:
    text = v2_on_two_gpus().replace("KExpertsCPU", "KExpertsMarlin")
    text = re.sub(
        r"generate_device: cpu\n      prefill_device: (cuda:\d)",
        r"generate_device: \1\n      prefill_device: \1",
        text,
    )
    assert check(text) == []
    (advice,) = check(text, engine="ktransformers-0.3")
    assert (advice.severity, advice.code) == (Severity.ADVICE, "cuda-graph")
    assert advice.layers == tuple(range(1, 60))
    (refused,) = check(text, engine="ktransformers-0.3.2")
    assert (refused.code, refused.rules) == ("engine", (8, 9))


def test_marlin_needs_a_card_that_can_run_it() -> None:
    old = Machine("2xv100", (CPU, gpu(0, (7, 0)), gpu(1, (7, 0))))
    found = check(v2_on_two_gpus(), machine=old)
    assert {finding.code for finding in found} == {"compute-capability"}
    assert "needs compute capability 8.0, but cuda:0 (RTX) has 7.0" in str(found[0])


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


def only(text: str, code: str, *, engine: str = "ktransformers-0.3") -> Finding:
    """The one finding; none of its consequences may be a finding of its own."""
    (finding,) = check(text, engine=engine)
    assert finding.code == code, finding
    return finding


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


V3 = "ktransformers.models.modeling_deepseek_v3.DeepseekV3"
CATCH_ALL = entry(r"^model\.layers\.", "", "default", "cuda:0", "prefill_device: cuda:0")


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


@pytest.mark.parametrize("engine", ["builtin", "ktransformers-0.2.1", "ktransformers-0.3"])
def test_classes_of_the_server_are_one_finding_that_names_them(engine: str) -> None:
    text = v2_on_two_gpus().replace("experts.KDeepseekV2MoE", "experts.KDeepseekV3MoEV2")
    text = text.replace("KTransformersExperts", "KTransformersExpertsV2")
    finding = only(text, "server-class", engine=engine)
    assert "KDeepseekV3MoEV2, KTransformersExpertsV2 are for the server" in finding.message
    assert finding.rules == (6, 7, 8, 9)


@pytest.mark.parametrize(
    ("operator", "code", "words"),
    [
        ("KLinearFP8", "unsupported-operator", "FP8 weights of KTransformers' own"),
        ("KLinearQ8", "unsupported-operator", "at every call"),
        ("VLinearMarlin", "engine", "is not in ktransformers-0.2.1"),
    ],
)
def test_linears_that_are_not_for_this_are_said_to_exist(
    operator: str, code: str, words: str
) -> None:
    text = v2_on_two_gpus().replace("generate_op: KLinearMarlin", f"generate_op: {operator}")
    assert words in only(text, code, engine="ktransformers-0.2.1").message


def test_types_that_a_backend_does_not_take_are_one_finding() -> None:
    text = v2_on_two_gpus().replace(
        "generate_op: KExpertsCPU", "generate_op: KExpertsCPU\n      backend: AMXInt8"
    )
    finding = only(text, "backend")
    assert finding.layers == tuple(range(1, 60))
    assert "the file has Q4_K, Q6_K" in finding.message


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
