import json
from pathlib import Path

import pytest

from autoplace.__main__ import main
from autoplace.predict.calibration import load_calibration

WORDS = ("probe", "model=tiny", "time_limit_s=2", "hardware=emulated-2x64mib")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept calibrations, away from the user's."""
    monkeypatch.setattr("autoplace.predict.calibration_store.cache_dir", lambda: tmp_path)
    return tmp_path / "calibrations"


def test_a_probe_is_kept_and_plan_starts_from_it(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, f"out={tmp_path}/profile.json", "output=json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (path,) = kept.iterdir()
    assert load_calibration(path) == load_calibration(tmp_path / "profile.json")
    assert document["figures"]
    assert all(f["low"] <= f["median"] <= f["high"] for f in document["figures"])
    assert main(["plan", "model=tiny", "hardware=emulated-2x64mib", "output=json"]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"]["source"] == "probe"


def test_only_the_builtin_engine_can_be_probed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "engine=ktransformers-0.3"]) == 2
    assert "probe measures the operators of engine=builtin" in capsys.readouterr().err
