"""Our walk and our files against KTransformers' own code, of each version that is at hand."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from autoplace.architectures.spec import ModelSpec
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.situation import Situation
from autoplace.rules.export import export_rules, rule_body
from autoplace.rules.families import family_of
from autoplace.rules.finding import Severity
from autoplace.rules.fix import fixed_text
from autoplace.rules.header import Header
from autoplace.rules.lint import examine
from autoplace.rules.match import assign
from autoplace.rules.read import read_rules
from autoplace.rules.rule import Rule
from autoplace.rules.subject import homes_of
from autoplace.rules.write import dump_rules
from autoplace.workload import Workload
from tests.oracles.ktransformers import (
    ENGINES,
    KTransformers,
    OracleError,
    OracleUnavailableError,
    running,
    sources,
)
from tests.rules.comparison import FAMILIES, check_injected, ours, rule_lists, small, theirs
from tests.rules.placements import placements
from tests.rules.specs import spec
from tests.rules.test_fix import MISTAKES, fixed
from tests.rules.two_gpus import v2_on_two_gpus

FIRST = "0.2.1.post1"
EACH = [(version, family) for version, families in FAMILIES.items() for family in families]
FEW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)
GIB = 1024**3
Oracles = Callable[[str], KTransformers]


@pytest.fixture(scope="module")
def oracles() -> Iterator[Oracles]:
    """Version → its running code; a test whose version is not at hand skips with the reason."""
    with ExitStack() as stack:
        started: dict[str, KTransformers] = {}

        def of(version: str) -> KTransformers:
            try:
                if version not in started:
                    started[version] = stack.enter_context(running(version))
            except OracleUnavailableError as error:
                pytest.skip(f"KTransformers' own code is not at hand: {error}")
            return started[version]

        yield of


@pytest.fixture
def oracle(oracles: Oracles) -> KTransformers:
    return oracles(FIRST)


@pytest.mark.parametrize(("version", "family"), EACH)
def test_our_modules_are_theirs_in_the_same_order(
    oracles: Oracles, version: str, family: str
) -> None:
    tree = oracles(version).tree(family)
    expected = {
        path: re.sub(r"^torch\.nn\.modules\.\w+\.", "torch.nn.", classes[0])
        for path, classes in tree.items()
        if not re.search(r"experts\.\d", path)
    }
    found = {module.path: module.class_name for module in small(family).modules}
    if expected[""].endswith("KQwen3MoeForCausalLM"):  # the server's own class for the root
        expected[""] = found[""]
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(("version", "family"), EACH)
def test_our_walk_gives_every_module_what_theirs_does(
    oracles: Oracles, version: str, family: str
) -> None:
    oracle = oracles(version)

    @settings(FEW, max_examples=15)
    @given(rule_lists(family))
    def compare(rules: list[Rule]) -> None:
        body = dump_rules(rules)
        read = read_rules(body, source="body").rules
        assert [replace(rule, line=0) for rule in read] == rules
        found = ours(assign(read, small(family), engine=ENGINES[version]))
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


SHIPPED = {
    "DeepSeek-V2-Lite": "deepseek-v2-lite",
    "DeepSeek-V2": "deepseek-v2",
    "DeepSeek-V3": "deepseek-v3",
    "Qwen2": "qwen2-57b-a14b",
    "Qwen3": "qwen3-30b-a3b",
    "Mixtral": "mixtral-8x7b",
}
"""How the names of the rule files that they ship begin → the model that they are for."""


def shipped(version: str) -> list[tuple[Path, str]]:
    folder = sources(version) / "ktransformers" / "optimize" / "optimize_rules"
    return [
        (path, family)
        for path in sorted(folder.glob("*.yaml"))
        for family in [next((f for s, f in SHIPPED.items() if path.name.startswith(s)), None)]
        if family in FAMILIES[version]
    ]


OF_ANOTHER_VERSION = "operators.attention.flashinfer_attn"
"""In a file that 0.3 ships: its class is in balance_serve_attention."""


@pytest.mark.parametrize(("version", "count"), [("0.2.1.post1", 13), ("0.3", 21), ("0.3.2", 24)])
def test_the_rule_files_that_they_ship_are_read_and_walked_alike(
    oracles: Oracles, version: str, count: int
) -> None:
    oracle, walked = oracles(version), 0
    for path, family in shipped(version):
        text = path.read_text()
        if OF_ANOTHER_VERSION in text:
            continue
        read = read_rules(text, source=path.name)
        assert read.findings == (), path.name
        found = ours(assign(read.rules, small(family), engine=ENGINES[version]))
        assert found == theirs(oracle.assign(family, text)), path.name
        walked += 1
    assert walked == count


HEADER = Header(
    engine="ktransformers-0.3",
    model="m",
    fingerprint="f",
    hardware="h",
    basis="predicted",
    settings=RunSettings(8, 512),
)


@pytest.mark.parametrize(("version", "family"), EACH)
def test_exported_files_give_every_module_the_placements_device_and_operator(
    oracles: Oracles, version: str, family: str, tmp_path: Path
) -> None:
    oracle, engine = oracles(version), ENGINES[version]

    @settings(FEW, max_examples=3)
    @given(placements(small(family), engine))
    def compare(placement: Placement) -> None:
        header = replace(HEADER, engine=engine)
        text = export_rules(tmp_path / "r.yaml", placement, small(family), header)
        answer = oracle.inject(family, text)
        assignment = assign(read_rules(text, source="t").rules, small(family), engine=engine)
        assert ours(assignment) == theirs(answer["config"])
        check_injected(answer["injected"], placement, assignment, small(family))

    compare()


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


def good_file(model: ModelSpec, engine: str) -> str:
    """Layers over two GPUs where the family can be split, Marlin linears, experts on the host."""
    half = model.geometry.num_layers // 2 if family_of(model).can_split else 10_000
    layers = []
    for index in range(model.geometry.num_layers):
        gpu = f"cuda:{int(index >= half)}"
        linear, with_mlp = Choice(gpu, "KLinearMarlin", 4), _has_mlp(model, index)
        experts = Choice("cpu", "KExpertsCPU") if index in model.moe_layers else None
        layers.append(LayerPlacement(gpu, linear, linear if with_mlp else None, experts))
    head = Choice(layers[-1].device, "KLinearTorch")
    return rule_body(Placement(engine, tuple(layers), head), model)


def _has_mlp(model: ModelSpec, layer: int) -> bool:
    names = ("dense_linear", "shared_linear")
    return any(m.layer == layer and m.role.value in names for m in model.modules)


def _sub(pattern: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, new, text)


ONE_ANSWER: dict[str, Callable[[str], str]] = {
    "quoted recursive": _sub("recursive: false", "recursive: 'False'"),
    "misspelt option": _sub("generate_op: 'KLinear", "generate_opp: 'KLinear"),
    "misspelt operator": _sub("'KExpertsCPU'", "'KExpertCPU'"),
    "embedding on a gpu": _sub(
        r"generate_device: 'cpu'\n      prefill_device: 'cpu'",
        r"generate_device: 'cuda:0'\n      prefill_device: 'cuda:0'",
    ),
    "null prefill_op": _sub("prefill_op: 'KExpertsTorch'", "prefill_op: null"),
    "no out_device": _sub(r"      out_device: 'cuda:1'\n", ""),
    "quoted transfer map": _sub(r"        (\d+): 'cuda:1'", r"        '\1': 'cuda:1'"),
    "threshold left out": _sub("      per_layer_prefill_intput_threshold: 0\n", ""),
    "last norm unmatched": _sub(r"\((\^model.*)\)\|\(\^model\\.norm\)", r"\1"),
    "experts by Marlin on the cpu": _sub("'KExpertsCPU'", "'KExpertsMarlin'"),
    "walk goes on": _sub("  recursive: false\n", ""),
}
TOGETHER = [
    ("quoted recursive", "misspelt option", "no out_device"),
    ("misspelt operator", "embedding on a gpu", "quoted transfer map"),
    ("null prefill_op", "threshold left out", "last norm unmatched"),
    ("experts by Marlin on the cpu", "walk goes on"),
]


@pytest.mark.parametrize(
    ("version", "family"), [one for one in EACH if one[0] == FIRST or "qwen3" in one[1]]
)
def test_their_code_takes_mended_files_of_every_family_as_the_good_ones(
    oracles: Oracles, version: str, family: str
) -> None:
    oracle, engine, model = oracles(version), ENGINES[version], small(family)
    good = good_file(model, engine)
    expected = oracle.inject(family, good)["injected"]
    for names in TOGETHER:
        faulty = good
        for name in names:
            faulty = ONE_ANSWER[name](faulty)
        assert faulty != good
        found = oracle.inject(family, _mended(faulty, model, engine))["injected"]
        assert found == expected, names


def _mended(text: str, model: ModelSpec, engine: str) -> str:
    gpus = (Device(f"cuda:{i}", "GPU", 80 * GIB, 0, 1e12, 1e14, (8, 6)) for i in range(2))
    machine = Machine("m", (Device("cpu", "host", 2048 * GIB, 0, 1e11, 1e12), *gpus))
    found = examine(read_rules(text, source="t"), model, engine=engine, machine=machine)
    assert found.findings
    assignment = found.assignment
    homes, workload = homes_of(assignment, model), Workload("chat", 128, 32, 160)
    settings = RunSettings(8, 512)
    return fixed_text(found, Situation(model, assignment, homes, machine, workload, settings))


SHIPPED_BUGS = {
    "DeepSeek-V3-Chat-multi-gpu-marlin.yaml": {"wrong-device", "no-device"},
    "Qwen2-57B-A14B-Instruct-multi-gpu.yaml": {"dead-rule", "no-device"},
    "Mixtral.yaml": {"no-device"},
    "DeepSeek-V2-Lite-Chat-gpu-cpu.yaml": {"dead-rule"},
    "Qwen3Moe-serve.yaml": {"dead-rule"},
}
"""What is really wrong with the rule files that they ship (issue #483 and others)."""
SINCE_FIXED = {"DeepSeek-V3-Chat-multi-gpu-marlin.yaml": {"no-device"}}
"""PR #697, in 0.2.2."""
GONE = {"DeepSeek-V3-Chat-multi-gpu-marlin.yaml": {"no-device", "engine"}}
"""GPU experts no longer load from 0.3.1 on."""
OTHER_KINDS = ("-serve", "-amx", "-fp8")
"""Files for the server, or for other weights than a quantised GGUF's."""


@pytest.mark.parametrize("version", FAMILIES)
def test_of_the_files_that_they_ship_only_the_known_bugs_are_found(
    oracles: Oracles, version: str
) -> None:
    oracles(version)
    bugs = SHIPPED_BUGS | {"0.2.1.post1": {}, "0.3": SINCE_FIXED, "0.3.2": GONE}[version]
    for path, family in shipped(version):
        read = read_rules(path.read_text(), source=path.name)
        found = examine(read, spec(family), engine=ENGINES[version]).findings
        codes = {f.code for f in found if f.severity is not Severity.ADVICE}
        of_other_kind = any(kind in path.name for kind in OTHER_KINDS)
        if of_other_kind and path.name != "Qwen3Moe-serve.yaml":
            assert codes & {"server-class", "backend", "unsupported-operator"}, path.name
        else:
            assert codes == bugs.get(path.name, set()), path.name
