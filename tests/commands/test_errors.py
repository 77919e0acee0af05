"""What a user can get wrong: one clear line on standard error, exit code 2, nothing lost."""

import os
import resource
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoplace.__main__ import main
from autoplace.hardware.nvml import visible_gpus
from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.synthesize import write_gguf
from tests.commands.command_line import Done, autoplace
from tests.weights.files import raw_gguf

RULES = """\
- match:
    name: "^model\\\\.layers\\\\..*\\\\.mlp\\\\.experts$"
  replace:
    class: ktransformers.operators.experts.KTransformersExpert
"""
FINE_RULES = """\
- match:
    name: "^lm_head$"
  replace:
    class: default
    kwargs: {generate_device: cpu, prefill_device: cpu}
"""


@dataclass(frozen=True)
class Mistake:
    """Files made by `prepare` in a folder beside the models', words, and what the line must say."""

    name: str
    words: Callable[[Path], list[str]]
    says: tuple[str, ...]
    prepare: Callable[[Path, Path], None] = lambda folder, models: None


def _no_gguf(folder: Path, models: Path) -> None:
    (folder / "m.gguf").write_bytes(b"PK\x03\x04" + bytes(100))


def _cut_header(folder: Path, models: Path) -> None:
    (folder / "m.gguf").write_bytes((models / "tiny.gguf").read_bytes()[:500])


def _cut_data(folder: Path, models: Path) -> None:
    content = (models / "tiny.gguf").read_bytes()
    (folder / "m.gguf").write_bytes(content[: len(content) - 1000])


def _unknown_architecture(folder: Path, models: Path) -> None:
    write_gguf(
        folder / "m.gguf",
        metadata={"general.architecture": "lama"},
        tensors=[TensorInfo("token_embd.weight", (4, 32), GGMLType.F32)],
        seed=0,
    )


def _unknown_type(folder: Path, models: Path) -> None:
    (folder / "m.gguf").write_bytes(raw_gguf(name=b"blk.0.attn_q.weight", ggml_type=77))


def _missing_shard(folder: Path, models: Path) -> None:
    for number in (1, 3):
        name = f"split-0000{number}-of-00003.gguf"
        shutil.copy(models / name, folder / name)


def _rules(folder: Path, models: Path) -> None:
    (folder / "r.yaml").write_text(RULES)


def _file_in_the_way(folder: Path, models: Path) -> None:
    (folder / "studies").write_text("not a folder")


def _model(folder: Path) -> list[str]:
    return [f"model.path={folder}/m.gguf"]


FILE_MISTAKES = [
    Mistake("a missing file", _model, ("m.gguf does not exist",)),
    Mistake("a file that is no GGUF", _model, ("m.gguf", "GGUF"), _no_gguf),
    Mistake("a truncated header", _model, ("m.gguf",), _cut_header),
    Mistake("truncated data", _model, ("m.gguf",), _cut_data),
    Mistake("an unknown architecture", _model, ("lama", "llama"), _unknown_architecture),
    Mistake("an unknown tensor type", _model, ("blk.0.attn_q.weight", "77"), _unknown_type),
    Mistake(
        "a missing shard",
        lambda folder: [f"model.path={folder}/split-00001-of-00003.gguf"],
        ("split-00002-of-00003.gguf",),
        _missing_shard,
    ),
]
WORD_MISTAKES = [
    Mistake("a misspelt key", lambda _: ["modle.path=x"], ("did you mean 'model.path'",)),
    Mistake("a misspelt group", lambda _: ["modl=tiny"], ("did you mean 'model'",)),
    Mistake("a misspelt choice", lambda _: ["model=tinny"], ("no model 'tinny'", "'tiny")),
    Mistake(
        "a file where a preset belongs", lambda _: ["model=/x/y.gguf"], ("model.path=/x/y.gguf",)
    ),
]
RUN_MISTAKES = [
    Mistake(
        "a workload longer than the context",
        lambda _: ["model=tiny", "workload.prompt_tokens=10000000"],
        ("10000032", "context"),
    ),
    Mistake(
        "a rule file with an unknown class",
        lambda folder: ["model=tiny", f"rules={folder}/r.yaml"],
        ("line", "KTransformersExpert", "did you mean"),
        _rules,
    ),
    Mistake(
        "a missing rule file",
        lambda folder: ["model=tiny", f"rules={folder}/r.yaml"],
        ("r.yaml", "No such file"),
    ),
]
TUNE_MISTAKES = [
    Mistake(
        "a studies folder that cannot be made",
        lambda folder: ["model=tiny", f"study_dir={folder}/studies"],
        ("studies",),
        _file_in_the_way,
    ),
]


def assert_one_line(done: Done, says: tuple[str, ...]) -> None:
    assert done.code == 2, done
    assert len(done.error_lines) == 1, done.stderr
    (line,) = done.error_lines
    assert line.startswith("autoplace: ")
    assert not line.endswith(".")
    for words in says:
        assert words.lower() in line.lower()
    assert not done.stdout


def commands_for(mistakes: list[Mistake], *commands: str) -> list[object]:
    return [
        pytest.param(command, mistake, id=f"{command}: {mistake.name}")
        for mistake in mistakes
        for command in commands
    ]


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        *commands_for(FILE_MISTAKES, "inspect", "bench", "tune"),
        *commands_for(WORD_MISTAKES, "plan", "bench", "tune"),
        *commands_for(RUN_MISTAKES, "plan", "bench", "tune"),
        *commands_for(TUNE_MISTAKES, "tune"),
    ],
)
def test_a_mistake_gives_one_line_and_loses_nothing(
    command: str,
    mistake: Mistake,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOPLACE_CACHE", str(models / "cache"))
    mistake.prepare(tmp_path, models)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capfd.readouterr()
    words = mistake.words(tmp_path)
    if command == "bench" and not any(word.startswith("rules=") for word in words):
        (tmp_path / "fine.yaml").write_text(FINE_RULES)
        words.append(f"rules={tmp_path / 'fine.yaml'}")
    code = main([command, *words])
    assert_one_line(Done(code, *capfd.readouterr()), mistake.says)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before


@pytest.mark.skipif(bool(visible_gpus()), reason="this machine has GPUs")
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_hardware_that_is_not_here_is_refused_with_a_hint(command: str, tmp_path: Path) -> None:
    _rules(tmp_path, tmp_path)
    done = autoplace(command, "hardware=2xa6000", f"rules={tmp_path}/r.yaml", cwd=tmp_path)
    assert_one_line(done, ("RTX-A6000", "no GPU", "`plan`", "measure=predicted"))


PREDICTED = ("tune", "model=tiny", "hardware=2x4090", "measure=predicted", "n_trials=2")


def test_a_locked_database_is_named_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(PREDICTED) == 0
    with closing(sqlite3.connect(tmp_path / "studies" / "studies.db")) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        trials = connection.execute("SELECT COUNT(*) FROM trials").fetchone()
        capfd.readouterr()
        code = main([*PREDICTED, "storage.busy_timeout_s=0.5"])
        assert_one_line(Done(code, *capfd.readouterr()), ("studies.db", "locked"))
        assert connection.execute("SELECT COUNT(*) FROM trials").fetchone() == trials
    assert main([*PREDICTED, "n_trials=3"]) == 0


def test_a_full_studies_folder_is_named_and_the_study_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))

    full = autoplace(*PREDICTED, cwd=tmp_path, before=small_files)
    assert_one_line(full, ("studies",))
    monkeypatch.chdir(tmp_path)
    assert main(PREDICTED) == 0


def test_a_full_disk_while_a_model_is_written_leaves_nothing(tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))

    done = autoplace("synth", "model=tiny", "out=m.gguf", cwd=tmp_path, before=small_files)
    assert_one_line(done, ("m.gguf",))
    assert not list(tmp_path.iterdir())


def test_an_unwritable_cache_is_named_with_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    done = autoplace(
        "tune",
        "model=tiny",
        cwd=tmp_path,
        environment={"AUTOPLACE_CACHE": os.fspath(tmp_path / "cache")},
    )
    assert_one_line(done, ("cache", "AUTOPLACE_CACHE"))
