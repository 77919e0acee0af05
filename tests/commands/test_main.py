import json
import subprocess
import sys
from pathlib import Path

import pytest

import autoplace
from autoplace.__main__ import COMMANDS, main
from autoplace.config.schema import COMMANDS as SCHEMAS
from tests.commands.command_line import autoplace as command_line


def test_every_command_has_a_schema_and_a_module() -> None:
    assert set(COMMANDS) == set(SCHEMAS)


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert all(f"  {command} " in text for command in COMMANDS)


def test_no_command_at_all_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert "usage" in captured.err


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_a_command_wins_over_what_else_is_said(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "nonsense", "--help"]) == 0
    assert f"usage: python -m autoplace {command}" in capsys.readouterr().out


def test_a_misspelt_command_names_its_near_miss(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tun"]) == 2
    assert capsys.readouterr().err == "autoplace: no command 'tun'; did you mean 'tune'\n"


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"autoplace {autoplace.__version__}\n"


def test_a_fault_of_ours_is_one_line_that_says_where_its_traceback_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "inspect", "autoplace.commands.no_such_module")
    monkeypatch.delenv("AUTOPLACE_DEBUG", raising=False)
    assert main(["inspect"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("autoplace: a fault of ours: ModuleNotFoundError")
    traceback = Path(line.rpartition("traceback in ")[2].rstrip(")"))
    assert "no_such_module" in traceback.read_text()
    traceback.unlink()


def test_an_interrupt_ends_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "interrupted.py").write_text("def run(config):\n    raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(COMMANDS, "inspect", "interrupted")
    assert main(["inspect"]) == 130
    assert capsys.readouterr().err == "autoplace: interrupted\n"


def test_a_closed_pipe_is_no_fault() -> None:
    done = subprocess.run(
        f"{sys.executable} -m autoplace inspect model=tiny | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "model=deepseek-v3"],
        ["plan", "hardware=8xl40", "model=deepseek-v3"],
    ],
    ids=lambda words: words[0],
)
def test_json_is_one_document_on_standard_output(words: list[str]) -> None:
    done = command_line(*words, "output=json")
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["command"] == words[0]
