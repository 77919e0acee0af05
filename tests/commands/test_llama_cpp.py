"""`tune` and `bench` of llama.cpp on a real small model: what is measured, written and refused."""

import json
from pathlib import Path

import pytest

from autoplace.export.llama_cpp.preset import parse_preset
from tests.bench.llama_cpp.installed import MODEL
from tests.commands.command_line import Done, autoplace

QUICK = (
    "runner=inline",
    "engine=llama.cpp",
    f"model.path={MODEL}",
    "workload=custom",
    "workload.prompt_tokens=16",
    "workload.output_tokens=4",
    "measure.min_repeats=1",
    "measure.max_repeats=1",
    "measure.max_wait_share=1",
    "measure.unstable_spread=100",
)
WHEEL = "engine.tool=xllamacpp"
OWN = "-ub 8 -t 1 -ot blk.99.ffn=CPU"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    folder = tmp_path_factory.mktemp("tune")
    environment = {"AUTOPLACE_CACHE": str(folder), "AUTOPLACE_LOCK": str(folder / "lock")}
    words = (*QUICK, WHEEL, "n_trials=2", f"study_dir={folder}", f"engine.args='{OWN}'")
    return autoplace("tune", *words, "output=json", environment=environment), folder


def test_a_tune_measures_the_users_line_and_the_defaults(tuned: tuple[Done, Path]) -> None:
    done, folder = tuned
    assert done.code == 0, done.stderr
    assert "running llama.cpp by xllamacpp" in done.stderr
    report = next(folder.rglob("report.md")).read_text()
    assert "| your arguments |" in report
    assert "| defaults, --fit |" in report


def test_the_gain_over_fit_is_told_with_its_noise_and_time(tuned: tuple[Done, Path]) -> None:
    done, folder = tuned
    over_fit = json.loads(done.stdout)["gain_over_fit"]
    assert over_fit["ratio"] > 0
    assert over_fit["two_standard_errors"] >= 0
    assert over_fit["search_s"] > 0
    report = next(folder.rglob("report.md")).read_text()
    assert "llama.cpp's own --fit" in report
    assert "minutes" in report


def test_what_fit_was_not_run_for_is_said_in_the_answer_and_in_the_report(
    tuned: tuple[Done, Path],
) -> None:
    done, folder = tuned
    (note,) = (note for note in json.loads(done.stdout)["notes"] if "--fit" in note)
    assert "there is no device beside the host to fit to" in note
    assert f"Note: {note}." in next(folder.rglob("report.md")).read_text()


def test_a_pattern_of_the_users_own_that_matches_nothing_is_told_and_measured(
    tuned: tuple[Done, Path],
) -> None:
    done, folder = tuned
    warning = "engine.args: -ot blk.99.ffn=CPU matches no tensor of the file"
    assert f"warning: {warning}" in done.stderr
    report = next(folder.rglob("report.md")).read_text()
    assert f"Note: {warning}." in report
    assert "your arguments" in report
    # What is exported has nothing that matches nothing.
    assert "blk.99" not in next(folder.rglob("best.preset.ini")).read_text()


def test_the_best_is_a_preset_and_lines_to_paste(tuned: tuple[Done, Path]) -> None:
    done, folder = tuned
    document = json.loads(done.stdout)
    preset = Path(document["files"]["rules"])
    assert preset.name == "best.preset.ini"
    (args,) = parse_preset(preset.read_text(), source="best").values()
    assert args.threads in (None, document["best"]["settings"]["num_threads"])
    assert args.ubatch == document["best"]["settings"]["prefill_chunk"]
    report = next(folder.rglob("report.md")).read_text()
    assert "llama-server -m MODEL.gguf" in report
    assert str(MODEL) not in report + preset.read_text()


def test_bench_reads_the_preset_and_tells_bytes_against_the_plan(
    tuned: tuple[Done, Path], tmp_path: Path
) -> None:
    preset = next(tuned[1].rglob("best.preset.ini"))
    environment = {"AUTOPLACE_LOCK": str(tmp_path / "lock")}
    words = (*QUICK, WHEEL, f"rules={preset}", "output=json")
    done = autoplace("bench", *words, environment=environment)
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["engine"] == "llama.cpp"
    declared = document["metrics"]["declared_bytes"]["cpu"]
    assert declared["weights"] > 90e6
    assert declared["kv_cache"] > 0


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("tune", ("max_kl=0.1", WHEEL), "max_kl guards builtin's trials"),
        ("tune", ("engine.args=-ot blk=CUDA7", WHEEL), "there is no such buffer, only CPU"),
        ("tune", ("engine.args=--mlock", WHEEL), "the xllamacpp wheel cannot be told --mlock"),
        ("tune", ("engine.args=-ub 8 -ub 16", WHEEL), "-ub"),
        ("tune", ("engine.keep=true", WHEEL), "which is not given"),
        ("tune", ("engine.binaries=/nowhere",), "there is no /nowhere"),
        ("tune", ("hardware=emulated-2x2gib", WHEEL), "only the builtin engine plays"),
        ("tune", ("hardware=rpc-2x4gib", WHEEL), "has no RPC backend"),
        ("tune", ("measure=predicted",), "plan llama.cpp"),
        ("bench", ("engine.args=-t 1", "rules=x", WHEEL), "not both"),
        ("bench", ("engine.tool=ollama",), "engine.tool is one of"),
    ],
)
def test_what_llama_cpp_cannot_do_is_told_in_one_line(
    tmp_path: Path, command: str, words: tuple[str, ...], message: str
) -> None:
    study = (f"study_dir={tmp_path}",) if command == "tune" else ()
    done = autoplace(command, *QUICK, *study, *words)
    assert done.code == 2, done.stderr
    assert message in done.error_lines[-1]
