import json
from pathlib import Path

import pytest

from autoplace.__main__ import main
from autoplace.commands.model_source import model_file
from autoplace.config import InspectConfig, load_config
from autoplace.errors import AutoplaceError
from autoplace.weights.gguf_file import GGUFFile


def inspect_config(*words: str) -> InspectConfig:
    config = load_config("inspect", words)
    assert isinstance(config, InspectConfig)
    return config


def test_shards_are_named_and_the_first_stands_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synth", "model=tiny", f"out={tmp_path / 'm.gguf'}", "num_shards=2", "output=json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert [Path(path).name for path in document["paths"]] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]
    assert document["n_bytes"] == sum(Path(path).stat().st_size for path in document["paths"])
    assert len(GGUFFile.open(Path(document["paths"][0])).paths) == 2


def test_a_quant_is_written_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert main(["synth", "model=tiny", f"out={path}", "quant=q8_0"]) == 0
    types = {info.ggml_type.name for info in GGUFFile.open(path).tensors.values()}
    assert types == {"Q8_0", "F32"}


def test_an_unknown_quant_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", "model=tiny", f"out={tmp_path / 'm.gguf'}", "quant=q4_k"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'q4_k'" in line
    assert "q4_k_m" in line


def test_weights_of_a_small_preset_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOPLACE_CACHE", str(tmp_path))
    path = model_file(inspect_config("model=tiny").model)
    written = path.stat().st_mtime_ns
    assert tmp_path in path.parents
    assert model_file(inspect_config("model=tiny").model) == path
    assert path.stat().st_mtime_ns == written
    assert model_file(inspect_config("model=tiny", "model.quant=f16").model) != path


def test_weights_of_a_big_preset_are_not_written_unasked() -> None:
    with pytest.raises(AutoplaceError, match="synth model=deepseek-v3 out=FILE"):
        model_file(inspect_config("model=deepseek-v3").model)
