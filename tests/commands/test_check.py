import json
from pathlib import Path
from typing import Any

import pytest

from autoplace.__main__ import main
from autoplace.commands.model_source import describe_model
from autoplace.config import PlanConfig, load_config
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.rules.export import rule_body

PLAIN = Choice("cuda:0", "KLinearTorch")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Tiny on one GPU, by plain linears, its experts on the CPU: compiled, so without a fault."""
    config = load_config("plan", ["model=tiny", "hardware=1x4090"])
    assert isinstance(config, PlanConfig)
    spec = describe_model(config.model)
    layers = tuple(
        LayerPlacement(
            "cuda:0",
            attention=PLAIN,
            mlp=PLAIN,
            experts=Choice("cpu", "KExpertsCPU") if layer in spec.moe_layers else None,
        )
        for layer in range(spec.geometry.num_layers)
    )
    path = tmp_path / "r.yaml"
    path.write_text(rule_body(Placement("builtin", layers, PLAIN), spec))
    return path


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["check", *words, "output=json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_compiled_file_runs_and_fits(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = check(capsys, f"rules={rules}", "model=tiny", "hardware=1x4090")
    assert code == 0, document
    assert not [f for f in document["findings"] if f["severity"] == "error"]
    assert document["memory"]["fits"]


def test_a_file_that_does_not_fit_says_where(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = check(
        capsys, f"rules={rules}", "model=tiny", "hardware=1x4090", "hardware.gpu_memory_gib=0.6001"
    )
    assert code == 1
    assert not document["memory"]["gpus_fit"]
    assert document["memory"]["devices"]["cuda:0"]["margin_bytes"] < 0


def test_a_fault_is_found_with_its_line(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules.write_text(rules.read_text().replace("KExpertsCPU", "KExpertsCUP"))
    code, document = check(capsys, f"rules={rules}", "model=tiny", "hardware=1x4090")
    assert code == 1
    errors = [f for f in document["findings"] if f["severity"] == "error"]
    assert any("KExpertsCPU" in f["message"] and f["line"] for f in errors), errors


def test_a_file_that_is_no_list_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.yaml").write_text("a: b\n")
    code, document = check(capsys, f"rules={tmp_path / 'r.yaml'}", "model=tiny", "hardware=1x4090")
    assert code == 1
    assert document["findings"][0]["code"] == "not-a-list"


def test_the_text_has_the_verdict(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"rules={rules}", "model=tiny", "hardware=1x4090"]) == 0
    assert "tiny on 1x4090 with builtin: fits; " in capsys.readouterr().out
