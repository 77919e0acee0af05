"""Overrides against a file's tensors: dead, shadowed, parted ones; every spelling of experts."""

import re

import pytest

from autoplace.export.llama_cpp import check_overrides, parse_args
from autoplace.export.llama_cpp.layout import cuda_buffers
from autoplace.export.llama_cpp.names import EVERY_LAYERS_EXPERTS, experts_of_layers, gate_and_up
from tests.rules.specs import spec


def test_a_pattern_that_matches_nothing_is_an_error_and_so_is_a_shadowed_one() -> None:
    names = list(spec("deepseek-v2").tensors)
    line = "-ngl 99 -ot exps=CPU,ffn_gate_exp_s=CPU --override-tensor blk.3.ffn_up_exps=CUDA0"
    found = check_overrides(parse_args(line), names)
    assert [(finding.code, finding.rule) for finding in found] == [
        ("dead-override", 2),
        ("shadowed-override", 3),
    ]
    assert "ffn_gate_exp_s=CPU matches no tensor" in found[0].message


@pytest.mark.parametrize(
    ("line", "halves"),
    [
        (
            "-ot ffn_up_exps=CPU",
            "gate of ffn_exps.weight is on its layer's device, but up is on CPU",
        ),
        (
            "-ot gate_exps=CUDA0,up_exps=CPU",
            "gate of ffn_exps.weight is on CUDA0, but up is on CPU",
        ),
        ("-ot ffn_gate_shexp=CPU", "gate of ffn_shexp.weight is on CPU, but up is on its layer's"),
        ("-ot 'blk.0.ffn_up.weight=CPU'", "gate of ffn.weight is on its layer's device, but up"),
    ],
)
def test_gate_and_up_are_never_parted(line: str, halves: str) -> None:
    found = check_overrides(parse_args(line), list(spec("deepseek-v2").tensors))
    assert [finding.code for finding in found] == ["parted-gate-and-up"]
    assert halves in found[0].message


def test_down_may_be_elsewhere() -> None:
    line = "-ot 'ffn_(gate|up)_exps=CPU,ffn_down_exps=CUDA0'"
    assert check_overrides(parse_args(line), list(spec("deepseek-v2").tensors)) == []


def test_a_pattern_that_does_not_compile_or_never_ends_is_an_error() -> None:
    found = check_overrides(parse_args("-ot '(=CPU,(a+)+b=CPU'"), ["aa"])
    assert [finding.code for finding in found] == ["bad-pattern", "bad-pattern"]


def test_a_buffer_that_the_machine_lacks_is_an_error() -> None:
    names = list(spec("deepseek-v2").tensors)
    found = check_overrides(parse_args("-ot exps=CUDA7"), names, cuda_buffers(["cuda:0"]))
    assert [finding.code for finding in found] == ["unknown-buffer"]
    assert "only CPU, CUDA0" in found[0].message


EXPERT_NAMES = [
    "ffn_gate_exps.weight",
    "ffn_up_exps.weight",
    "ffn_down_exps.weight",
    "ffn_gate_up_exps.weight",
    "ffn_gate_chexps.weight",
    "ffn_down_chexps.weight",
    "ffn_gate_exps.bias",
    "ffn_down_exps.bias",
    "ffn_up_exps.scale",
]
OTHER_NAMES = ["ffn_gate_inp.weight", "ffn_gate_shexp.weight", "ffn_up.weight", "exp_probs_b.bias"]


@pytest.mark.parametrize("name", EXPERT_NAMES)
def test_biases_and_scales_go_with_their_experts_in_every_spelling(name: str) -> None:
    assert re.search(EVERY_LAYERS_EXPERTS, f"blk.3.{name}")
    assert re.search(experts_of_layers([3, 13]), f"blk.13.{name}")
    assert not re.search(experts_of_layers([3, 13]), f"blk.33.{name}")


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_what_is_no_routed_expert_stays(name: str) -> None:
    assert not re.search(experts_of_layers([3]), f"blk.3.{name}")


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("blk.3.ffn_gate_exps.weight", ("blk.3.ffn_exps.weight", "gate")),
        ("blk.3.ffn_up_exps.bias", ("blk.3.ffn_exps.bias", "up")),
        ("blk.3.ffn_up_chexps.weight", ("blk.3.ffn_chexps.weight", "up")),
        ("blk.3.ffn_gate.7.weight", ("blk.3.ffn.7.weight", "gate")),
        ("blk.3.ffn_gate_up_exps.weight", None),
        ("blk.3.ffn_gate_inp.weight", None),
        ("blk.3.ffn_down_exps.weight", None),
    ],
)
def test_halves_of_swiglu_are_known(name: str, pair: tuple[str, str] | None) -> None:
    assert gate_and_up(name) == pair


def test_old_mixtral_files_with_an_expert_a_tensor_are_checked_like_others() -> None:
    names = [
        f"blk.{i}.ffn_{part}.{e}.weight"
        for i in (0, 1)
        for part in ("gate", "up", "down")
        for e in (0, 1)
    ]
    whole = parse_args(r"-ot 'blk\.(1)\.ffn_(gate|up|down)\.\d+\.=CPU'")
    assert check_overrides(whole, names) == []
    parted = check_overrides(parse_args(r"-ot 'blk\.1\.ffn_up\.\d=CPU'"), names)
    assert {finding.code for finding in parted} == {"parted-gate-and-up"}
