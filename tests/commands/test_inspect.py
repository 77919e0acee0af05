import json
from pathlib import Path
from typing import Any

import pytest

from autoplace.__main__ import main


def inspect(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["inspect", *words, "output=json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def n_bytes(document: dict[str, Any], role: str) -> int:
    return sum(part["n_bytes"] for part in document["parts"] if part["role"] == role)


def test_a_preset_has_the_bytes_of_the_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    document = inspect(capsys, "model=deepseek-v2")
    assert n_bytes(document, "experts") == 134_686_310_400
    of_type = {True: 0, False: 0}
    for part in document["parts"]:
        if part["role"] == "experts":
            of_type["Q6_K" in part["types"]] += 1
    assert of_type == {True: 29, False: 30}


@pytest.mark.parametrize("name", ["tiny.gguf", "split-00001-of-00003.gguf"])
def test_a_file_is_what_its_preset_says(
    name: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_file = inspect(capsys, f"model.path={models / name}")
    of_preset = inspect(capsys, "model=tiny")
    assert of_file["parts"] == of_preset["parts"]
    assert of_file["fingerprint"] == of_preset["fingerprint"]
    assert of_file["n_bytes"] == sum(part["n_bytes"] for part in of_file["parts"])


def test_the_text_says_bytes_by_role_and_by_layer(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"model.path={models / 'tiny.gguf'}"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("tiny: deepseek2, ")
    assert "Bytes by role" in text
    assert "Bytes by layer" in text


def test_a_file_without_weights_is_inspected_like_one_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "v3.gguf"
    assert main(["synth", "model=deepseek-v3", f"out={path}", "sparse=true"]) == 0
    assert path.stat().st_size > 350 * 2**30
    assert path.stat().st_blocks * 512 < 64 * 2**20
    of_file = inspect(capsys, f"model.path={path}")
    assert of_file["parts"] == inspect(capsys, "model=deepseek-v3")["parts"]
