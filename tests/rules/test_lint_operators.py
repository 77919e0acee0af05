"""Operators, classes and types that an engine or a card does not have, found in rule files."""

import re

import pytest

from autoplace.hardware.machine import Machine
from autoplace.rules.finding import Severity
from tests.rules.two_gpus import CPU, check, gpu, only, v2_on_two_gpus


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
