"""One rule file, written for every engine, or refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from autoplace.__main__ import main
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.rules.export import rule_body
from autoplace.rules.header import split_header
from tests.rules.specs import spec
from tests.rules.two_gpus import v2_on_two_gpus

WORDS = ("model=deepseek-v2", "hardware=2xa6000")
ENGINES = ("builtin", "ktransformers-0.2.1", "ktransformers-0.3", "ktransformers-0.3.2")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "mine.rules.yaml"
    path.write_text(v2_on_two_gpus())
    return path


def written(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["export", *words])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rule_file_is_written_for_each_version_and_checks_clean(
    engine: str, rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.rules.yaml"
    words = (f"rules={rules}", *WORDS, f"engine={engine}", f"out={out}")
    assert written(capsys, *words) == (0, "", "")
    header, _ = split_header(out.read_text(), source="out")
    assert header is not None
    assert (header.engine, header.basis, header.measured_with) == (engine, "predicted", "")
    assert header.predicted_bytes["cuda:0"] > 3 * 2**30
    capsys.readouterr()
    words = (f"rules={out}", *WORDS, f"engine={engine}", "output=json")
    assert main(["check", *words]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize(
    ("engine", "start"),
    [
        ("llama.cpp", "llama-server -m GGUF -ngl 61 -ts 30,31"),
        ("sglang-kt", "python -m sglang.launch_server --model MODEL --tensor-parallel-size 2"),
    ],
)
def test_engines_that_flags_drive_get_a_line_with_its_bytes(
    engine: str, start: str, rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = written(capsys, f"rules={rules}", *WORDS, f"engine={engine}")
    assert code == 0
    comments, line = text.splitlines()[:-1], text.splitlines()[-1]
    assert line.startswith(start)
    assert "predicted: cpu 13" in comments[1]


def test_qwen3_is_written_for_the_server_with_its_launch_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qwen = ("model=qwen3-30b-a3b", "hardware=1x4090")
    plan = tmp_path / "plan.rules.yaml"
    plan.write_text(one_gpu_file("qwen3-30b-a3b"))
    code, text, error = written(capsys, f"rules={plan}", *qwen, "engine=ktransformers-0.3")
    assert code == 0, error
    assert "--backend_type balance_serve --cache_lens 256" in text
    assert "KTransformersExpertsV2" in text
    code, _, error = written(capsys, f"rules={plan}", *qwen, "engine=ktransformers-0.2.1")
    assert code == 2
    assert "no rules for qwen3moe; ktransformers-0.3 and ktransformers-0.3.2 have" in error


def one_gpu_file(model: str) -> str:
    linear, host = Choice("cuda:0", "KLinearMarlin", 4), Choice("cpu", "KExpertsCPU")
    layers = (LayerPlacement("cuda:0", linear, None, host),) * 48
    return rule_body(Placement("builtin", layers, linear), spec(model))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("engine=ktransformers-0.3", "hardware.host_memory_gib=64"), "cpu needs 126.4"),
        (("engine=llama.cpp", "hardware.host_memory_gib=64"), "cannot hold this placement: cpu"),
        (("engine=sglang-kt", "hardware.gpu_memory_gib=[48,24]"), "must be equal"),
    ],
)
def test_what_an_engine_cannot_hold_or_say_is_refused_with_the_reason(
    words: tuple[str, ...], reason: str, rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = written(capsys, f"rules={rules}", *WORDS, *words)
    assert code in (1, 2)
    assert text == ""
    assert reason in error


def test_a_faulty_file_is_not_exported(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules.write_text(v2_on_two_gpus().replace("        30: cuda:1", "        31: cuda:1"))
    code, _, error = written(capsys, f"rules={rules}", *WORDS, "engine=ktransformers-0.3")
    assert code == 2
    assert "mine.rules.yaml: rule 12, line 96, layer 30" in error


def test_the_document_holds_the_text_and_the_bytes(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"rules={rules}", *WORDS, "engine=ktransformers-0.3", "output=json")
    document: dict[str, Any] = json.loads(written(capsys, *words)[1])
    assert document["command"] == "export"
    assert document["text"].startswith("# autoplace rule file")
    assert set(document["peak_bytes"]) == {"cpu", "cuda:0", "cuda:1"}
