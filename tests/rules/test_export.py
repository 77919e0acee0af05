"""Exported files: in place whole or not at all, and what they should be."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from autoplace.errors import AutoplaceError
from autoplace.placement.placement import Choice
from autoplace.placement.settings import RunSettings
from autoplace.rules.export import export_rules, rule_body
from autoplace.rules.header import Header
from autoplace.rules.launch import launch_lines
from autoplace.rules.match import assign
from autoplace.rules.read import load_rules
from autoplace.rules.read_back import read_back
from tests.rules.specs import spec
from tests.rules.test_compile import split, uniform

MODEL = "deepseek-v2-lite"
HEADER = Header(
    engine="ktransformers-0.3",
    model=MODEL,
    fingerprint="f",
    hardware="2xa6000",
    basis="predicted",
    settings=RunSettings(16, 512),
    launch=("python -m autoplace bench rules=FILE",),
)


def test_an_exported_file_is_read_as_the_placement_it_is_for(tmp_path: Path) -> None:
    path = tmp_path / "pareto" / "1.rules.yaml"
    text = export_rules(path, split(MODEL, 20), spec(MODEL), HEADER)
    assert path.read_text() == text
    found = load_rules(path)
    assert found.is_untouched
    assert found.body == rule_body(split(MODEL, 20), spec(MODEL))
    assert found.header is not None
    assert found.header.settings == HEADER.settings
    assignment = assign(found.rules, spec(MODEL), engine="ktransformers-0.3")
    assert read_back(assignment, spec(MODEL)) == split(MODEL, 20)
    assert os.listdir(path.parent) == ["1.rules.yaml"]


def test_a_file_holds_no_path_and_no_host_name(tmp_path: Path) -> None:
    text = export_rules(tmp_path / "best.rules.yaml", split(MODEL, 20), spec(MODEL), HEADER)
    assert str(tmp_path) not in text
    assert os.uname().nodename not in text


def test_a_measured_body_is_exported_byte_for_byte(tmp_path: Path) -> None:
    body = "# by hand\n" + rule_body(split(MODEL, 20), spec(MODEL))
    path = tmp_path / "best.rules.yaml"
    export_rules(path, split(MODEL, 20), spec(MODEL), HEADER, body=body)
    assert load_rules(path).body == body


def test_a_body_of_another_placement_never_gets_into_place(tmp_path: Path) -> None:
    path = tmp_path / "best.rules.yaml"
    path.write_text("what was there before\n")
    body = rule_body(split(MODEL, 19), spec(MODEL))
    with pytest.raises(AutoplaceError, match=r"best.rules.yaml: the rules do not mean the plac"):
        export_rules(path, split(MODEL, 20), spec(MODEL), HEADER, body=body)
    assert path.read_text() == "what was there before\n"
    assert os.listdir(tmp_path) == ["best.rules.yaml"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "studies").write_text("in the way")
    with pytest.raises(AutoplaceError, match=r"cannot write the rule file .*best.rules.yaml: "):
        export_rules(
            tmp_path / "studies" / "best.rules.yaml", split(MODEL, 20), spec(MODEL), HEADER
        )


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("ktransformers-0.2.1", "--optimize_rule_path FILE"),
        ("ktransformers-0.3", "--optimize_config_path FILE"),
        ("ktransformers-0.3.2", "--optimize_config_path FILE"),
        ("builtin", "python -m autoplace bench rules=FILE"),
    ],
)
def test_each_engine_is_launched_with_its_own_flag(engine: str, flag: str) -> None:
    (line,) = launch_lines(uniform(MODEL, "cuda:0", engine), RunSettings(16, 512))
    assert flag in line
    if engine != "builtin":
        assert "--cpu_infer 16" in line


def test_experts_on_a_gpu_turn_cuda_graphs_off_in_the_launch_line() -> None:
    placement = uniform(MODEL, "cuda:0", "ktransformers-0.3")
    on_gpu = replace(placement.layers[5], experts=Choice("cuda:0", "KExpertsMarlin", 4))
    layers = (*placement.layers[:5], on_gpu, *placement.layers[6:])
    settings = RunSettings(16, 512)
    assert "--use_cuda_graph True" in launch_lines(placement, settings)[0]
    assert "--use_cuda_graph False" in launch_lines(replace(placement, layers=layers), settings)[0]
