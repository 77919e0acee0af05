"""Our walk and our files against KTransformers 0.2.1.post1's own code."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autoplace.architectures.registry import spec_from_geometry
from autoplace.architectures.spec import ModelSpec
from autoplace.placement.assignment import Assignment
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.rules.export import export_rules
from autoplace.rules.finding import Severity
from autoplace.rules.header import Header
from autoplace.rules.lint import examine
from autoplace.rules.match import assign
from autoplace.rules.read import read_rules
from autoplace.rules.rule import Rule
from autoplace.rules.write import dump_rules
from tests.oracles.ktransformers import (
    CACHE,
    KTransformers,
    OracleError,
    OracleUnavailableError,
    running,
)
from tests.rules.placements import placements
from tests.rules.specs import GEOMETRIES, KTRANSFORMERS_FAMILIES, spec
from tests.rules.test_fix import MISTAKES, fixed
from tests.rules.test_lint import v2_on_two_gpus

FAMILIES = (*KTRANSFORMERS_FAMILIES, "mixtral-8x7b")
FEW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)


@pytest.fixture(scope="module")
def oracle() -> Iterator[KTransformers]:
    try:
        with running() as ktransformers:
            yield ktransformers
    except OracleUnavailableError as error:
        pytest.skip(f"KTransformers' own code is not at hand: {error}")


@cache
def small(family: str) -> ModelSpec:
    """The model with the 8 experts a layer that the oracle builds."""
    geometry = GEOMETRIES[family]
    assert geometry.moe is not None
    return spec_from_geometry(
        family, replace(geometry, moe=replace(geometry.moe, num_experts=8)), quant="q4_k_m"
    )


def theirs(config: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, object]]:
    return {path: (entry["class"], entry["kwargs"]) for path, entry in config.items()}


def ours(assignment: Assignment) -> dict[str, tuple[str, object]]:
    """In their terms: an unmatched module has the default device as keywords."""
    unmatched = {"generate_device": "cuda:0", "prefill_device": "cuda:0"}
    return {
        path: (
            entry.class_name or "default",
            unmatched if entry.rule is None else _plain(dict(entry.kwargs)),
        )
        for path, entry in assignment.modules.items()
    }


def _plain(value: Any) -> Any:
    """As the oracle's answers spell mappings that have other keys than strings."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return {"pairs": [[key, _plain(item)] for key, item in value.items()]}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("family", FAMILIES)
def test_our_modules_are_theirs_in_the_same_order(oracle: KTransformers, family: str) -> None:
    tree = oracle.tree(family)
    expected = {
        path: re.sub(r"^torch\.nn\.modules\.\w+\.", "torch.nn.", classes[0])
        for path, classes in tree.items()
        if not re.search(r"experts\.\d", path)
    }
    found = {module.path: module.class_name for module in small(family).modules}
    assert found == expected
    assert list(found) == list(expected)


NAMES = st.sampled_from(
    [
        "",
        "mlp",
        "^model$",
        "^lm_head",
        r"^model\.layers\.(?:0|1|2|3)\.",
        r"^model\.layers\.([0-9]|1[0-9])\.",
        r"^model\.layers\.([30-59])\.",
        r"^model\.layers\.([0-2][0-9])\.",
        r"model.layers.1",
        r"^model\.layers\..*\.mlp\.experts$",
        r"(?:mlp|block_sparse_moe)\.experts$",
        r"experts\.[0-3]\.",
        r"experts\.\d+$",
        r"\.(?:3|4)\.",
        r"^model\.layers\.(?!.*self_attn\.kv_b_proj).*$",
        r"self_attn$",
        r"_proj$",
        r"(^model\.norm)|(^lm_head)",
        r"^model\.layers\.(?:5|25)\.mlp$",
        r"gate",
        r"^model\.embed_tokens$",
        r"norm$",
        r"(?i)MLP\.GATE$",
        r"\w+\.\d\d\.",
    ]
)
CLASSES = {
    "deepseek-v2": "modeling_deepseek.DeepseekV2",
    "deepseek-v2-lite": "modeling_deepseek.DeepseekV2",
    "deepseek-v3": "modeling_deepseek_v3.DeepseekV3",
    "qwen2-57b-a14b": "modeling_qwen2_moe.Qwen2Moe",
    "mixtral-8x7b": "modeling_mixtral.Mixtral",
}
COMMON = [
    "torch.nn.Linear",
    "torch.nn.modules.linear.Linear",
    "torch.nn.Module",
    "torch.nn.ModuleList",
    "torch.nn.Embedding",
]
KWARGS = st.sampled_from(
    [
        None,
        {},
        {"generate_device": "cuda:1", "prefill_device": "cuda:1"},
        {"generate_device": "cuda"},
        {"transfer_map": {3: "cuda:1", "4": "cuda:0"}},
        {"generate_device": "cpu", "generate_op": "KExpertsCPU", "out_device": "cuda:0"},
    ]
)
INJECTED = st.sampled_from(
    [
        "default",
        "ktransformers.operators.linear.KTransformersLinear",
        "ktransformers.operators.experts.KTransformersExperts",
        "ktransformers.operators.models.KDeepseekV2Model",
    ]
)


def rule_lists(family: str) -> st.SearchStrategy[list[Rule]]:
    base = f"ktransformers.models.{CLASSES[family]}"
    own = [f"{base}{name}" for name in ("RMSNorm", "Attention", "RotaryEmbedding", "Model")]
    classes = st.sampled_from(COMMON + own)
    rule = st.builds(
        lambda where, replace_class, kwargs, recursive: Rule(
            where[0], where[1], replace_class, kwargs or {}, recursive
        ),
        st.tuples(NAMES, st.none() | classes) | st.tuples(st.none(), classes),
        INJECTED,
        KWARGS,
        st.booleans() | st.just(True),
    )
    return st.lists(rule, min_size=1, max_size=8)


@pytest.mark.parametrize("family", FAMILIES)
def test_our_walk_gives_every_module_what_theirs_does(oracle: KTransformers, family: str) -> None:
    @settings(FEW, max_examples=15)
    @given(rule_lists(family))
    def compare(rules: list[Rule]) -> None:
        body = dump_rules(rules)
        read = read_rules(body, source="body").rules
        assert [replace(rule, line=0) for rule in read] == rules
        found = ours(assign(read, small(family), engine="ktransformers-0.2.1"))
        expected = theirs(oracle.assign(family, body))
        assert found == expected
        assert list(found) == list(expected)

    compare()


def test_a_pattern_that_they_cannot_compile_is_our_finding(oracle: KTransformers) -> None:
    body = dump_rules([Rule("([4-10])", None, "default")])
    with pytest.raises(OracleError, match="bad character range 4-1"):
        oracle.assign("deepseek-v2-lite", body)
    (finding,) = read_rules(body, source="body").findings
    assert finding.code == "bad-pattern"
    assert "bad character range 4-1" in finding.message


def test_quoted_false_recurses_there_and_is_our_finding(oracle: KTransformers) -> None:
    body = dump_rules([Rule("experts$", None, "default", {}, recursive=False)])
    body = body.replace("recursive: false", "recursive: 'False'")
    config = oracle.assign("deepseek-v2-lite", body)
    read = read_rules(body, source="body")
    assert [finding.code for finding in read.findings] == ["bad-recursive"]
    assert ours(assign(read.rules, small("deepseek-v2-lite"), engine="builtin")) == theirs(config)


def test_the_rule_files_that_they_ship_are_read_and_walked_alike(oracle: KTransformers) -> None:
    folder = CACHE / "sdist" / "ktransformers" / "optimize" / "optimize_rules"
    families = {"DeepSeek-V2-Lite": "deepseek-v2-lite", "DeepSeek-V2": "deepseek-v2"}
    families |= {"DeepSeek-V3": "deepseek-v3", "Qwen2": "qwen2-57b-a14b", "Mixtral": "mixtral-8x7b"}
    walked = 0
    for path in sorted(folder.glob("*.yaml")):
        family = next((f for start, f in families.items() if path.name.startswith(start)), None)
        if family is None:
            continue
        text = path.read_text()
        read = read_rules(text, source=path.name)
        assert read.findings == (), path.name
        found = ours(assign(read.rules, small(family), engine="ktransformers-0.2.1"))
        assert found == theirs(oracle.assign(family, text)), path.name
        walked += 1
    assert walked >= 8


HEADER = Header(
    engine="ktransformers-0.3",
    model="m",
    fingerprint="f",
    hardware="h",
    basis="predicted",
    settings=RunSettings(8, 512),
)


@pytest.mark.parametrize("family", KTRANSFORMERS_FAMILIES)
def test_exported_files_give_every_module_the_placements_device_and_operator(
    oracle: KTransformers, family: str, tmp_path: Path
) -> None:
    @settings(FEW, max_examples=3)
    @given(placements(small(family), "ktransformers-0.3"))
    def compare(placement: Placement) -> None:
        path = tmp_path / "best.rules.yaml"
        text = export_rules(path, placement, small(family), HEADER)
        answer = oracle.inject(family, text)
        assignment = assign(
            read_rules(text, source="t").rules, small(family), engine=placement.engine
        )
        assert ours(assignment) == theirs(answer["config"])
        _check_injected(answer["injected"], placement, assignment)

    compare()


def _check_injected(
    injected: Mapping[str, Mapping[str, Any]], placement: Placement, assignment: Assignment
) -> None:
    """What their constructors made, module by module, against the placement itself."""
    assert injected["model.embed_tokens"]["class"].endswith(".Embedding")
    for path, entry in assignment.modules.items():
        made = injected.get(path)
        if made is None or entry.class_name is None:
            continue
        assert made["class"] == entry.class_name, path
        if path != "model":
            assert made["device"] == entry.device, path
        assert made.get("operator") == entry.operator, path
    for index, layer in enumerate(placement.layers):
        prefix = f"model.layers.{index}"
        found = injected[f"{prefix}.self_attn.o_proj"]
        assert (found["operator"], found["device"]) == (
            layer.attention.operator,
            layer.attention.device,
        )
        assert found.get("num_bits") == layer.attention.num_bits
        if layer.experts is not None:
            experts = injected[f"{prefix}.mlp.experts"]
            assert (experts["operator"], experts["device"]) == (
                layer.experts.operator,
                layer.experts.device,
            )
            if layer.experts.device == "cpu":
                assert experts["out_device"] == layer.device
    moves = injected["model"]["transfer_map"]
    expected = [
        [index, layer.device]
        for index, layer in enumerate(placement.layers)
        if index and layer.device != placement.layers[index - 1].device
    ]
    assert moves == ({"pairs": expected} if expected else None)
    assert injected["model"]["per_layer_prefill_intput_threshold"] == 0


@pytest.mark.parametrize(
    "mistake",
    [
        "two-digit pattern",
        "number range",
        "quoted transfer map",
        "quoted recursive",
        "kv_b injected",
        "misspelt option",
        "catch-all on the first gpu",
    ],
)
def test_their_code_makes_of_a_mended_file_what_it_makes_of_the_good_one(
    oracle: KTransformers, mistake: str
) -> None:
    good = v2_on_two_gpus()
    mended = fixed(MISTAKES[mistake](good), engine="ktransformers-0.2.1")
    expected, found = oracle.inject("deepseek-v2", good), oracle.inject("deepseek-v2", mended)
    assert found["injected"] == expected["injected"]
    devices = [
        {path: entry["kwargs"].get("generate_device") for path, entry in answer["config"].items()}
        for answer in (expected, found)
    ]
    with_weights = [module.path for module in small("deepseek-v2").modules if module.tensors]
    assert {path: devices[1][path] for path in with_weights} == {
        path: devices[0][path] for path in with_weights
    }


SHIPPED_BUGS = {
    "DeepSeek-V3-Chat-multi-gpu-marlin.yaml": {"wrong-device", "no-device"},
    "Qwen2-57B-A14B-Instruct-multi-gpu.yaml": {"dead-rule", "no-device"},
    "Mixtral.yaml": {"no-device"},
}
"""What is really wrong with the rule files of 0.2.1.post1 (its issues #483 and others)."""


def test_of_the_files_that_they_ship_only_the_known_bugs_are_found(oracle: KTransformers) -> None:
    folder = CACHE / "sdist" / "ktransformers" / "optimize" / "optimize_rules"
    families = {"DeepSeek-V2-Lite": "deepseek-v2-lite", "DeepSeek-V2": "deepseek-v2"}
    families |= {"DeepSeek-V3": "deepseek-v3", "Qwen2": "qwen2-57b-a14b", "Mixtral": "mixtral-8x7b"}
    for path in sorted(folder.glob("*.yaml")):
        family = next((f for start, f in families.items() if path.name.startswith(start)), None)
        if family is not None:
            read = read_rules(path.read_text(), source=path.name)
            found = examine(read, spec(family), engine="ktransformers-0.2.1").findings
            codes = {f.code for f in found if f.severity is not Severity.ADVICE}
            assert codes == SHIPPED_BUGS.get(path.name, set()), path.name
