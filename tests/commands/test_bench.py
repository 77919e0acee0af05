"""`bench` on `tiny`: the document, the settings it reads back, and its exit codes."""

import json
from pathlib import Path

import pytest

from autoplace.architectures import spec_from_gguf
from autoplace.placement.settings import RunSettings
from autoplace.rules.header import Header, render_file
from autoplace.weights.gguf_file import GGUFFile
from tests.bench.trial_requests import TinyModel
from tests.commands.command_line import Done, autoplace

QUICK = (
    "runner=inline",
    "workload=custom",
    "workload.prompt_tokens=16",
    "workload.output_tokens=4",
    "measure.min_repeats=1",
    "measure.max_repeats=1",
    "measure.quality_tokens=4",
)


@pytest.fixture(scope="module")
def rules(models: Path) -> Path:
    """A rule file whose header says one thread, a chunk of 7 and an f32 cache."""
    model = TinyModel(models / "tiny.gguf")
    header = Header(
        engine="builtin",
        model="tiny",
        fingerprint=spec_from_gguf(GGUFFile.open(model.path)).fingerprint,
        hardware="emulated-2x128mib",
        basis="emulated",
        settings=RunSettings(num_threads=1, prefill_chunk=7, kv_type="f32"),
    )
    path = models / "best.rules.yaml"
    path.write_text(render_file(header, model.request().rules))
    return path


def bench(rules: Path, *words: str) -> Done:
    return autoplace(
        "bench",
        f"rules={rules}",
        f"model.path={rules.parent}/tiny.gguf",
        *("hardware=emulated-2x128mib", *QUICK),
        *words,
    )


def test_the_document_has_numbers_and_bytes_three_ways(rules: Path) -> None:
    done = bench(rules, "output=json")
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "ok"
    assert document["basis"] == "emulated"
    assert document["settings"] == {"num_threads": 1, "prefill_chunk": 7, "kv_type": "f32"}
    metrics = document["metrics"]
    assert metrics["decode_tok_per_s"]["median"] > 0
    assert metrics["quality"]["num_positions"] == 4
    assert metrics["role_seconds"] is None
    declared = {name: entry["peak"] for name, entry in metrics["declared_bytes"].items()}
    predicted = document["predicted"]["devices"]
    assert declared == {name: entry["peak_bytes"] for name, entry in predicted.items()}
    assert document["footprint"]["is_within"] is True


def test_what_is_given_wins_over_the_header(rules: Path) -> None:
    document = json.loads(bench(rules, "settings.kv_type=q8_0", "output=json").stdout)
    assert document["settings"] == {"num_threads": 1, "prefill_chunk": 7, "kv_type": "q8_0"}


def test_out_of_memory_ends_with_1_and_names_the_device(rules: Path) -> None:
    done = bench(rules, "hardware.gpu_memory_gib=[0.001,0.125]", "output=json")
    assert done.code == 1
    document = json.loads(done.stdout)
    assert document["status"] == "out_of_memory"
    assert document["out_of_memory_device"] == "cuda:0"
    assert document["metrics"] is None
    assert "does not fit" in done.stderr


def test_the_text_has_the_same_in_tables(rules: Path) -> None:
    done = bench(rules, "measure.by_role=true")
    assert done.code == 0, done.stderr
    said = ("(equal)", "within", "decode, tok/s", "mean KL", "emulated: says nothing", "by role")
    for words in said:
        assert words in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("measure=predicted",), "bench measures"),
        (("engine=ktransformers-0.3",), "cannot be measured here"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    rules: Path, words: tuple[str, ...], expected: str
) -> None:
    done = bench(rules, *words)
    assert done.code == 2
    assert len(done.error_lines) == 1
    assert expected in done.error_lines[0]
