"""llama-server's preset files: what is written is what llama.cpp would read, and is read back."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import LlamaCppArgs, parse_args
from autoplace.export.llama_cpp.preset import (
    export_preset,
    looks_like_preset,
    parse_preset,
    preset_body,
)
from autoplace.placement.settings import RunSettings
from autoplace.rules.header import Header, split_header

ARGS = LlamaCppArgs(
    n_gpu_layers=61,
    tensor_split=(30.0, 31.0),
    overrides=((r"blk\.(1|2)\.ffn_(up|down|gate)_exps", "CPU"),),
    cache_type_k="q8_0",
    threads=8,
    context=4096,
    mmap=False,
    fit=False,
    parallel=1,
)


def test_a_preset_has_long_names_and_no_path() -> None:
    body = preset_body(
        "m", LlamaCppArgs(n_gpu_layers=3, mmap=False, kv_offload=False, model="/home/me/m.gguf")
    )
    assert body == "version = 1\n\n[m]\nn-gpu-layers = 3\nmmap = false\nkv-offload = false\n"


def test_secrets_of_a_line_are_not_committed() -> None:
    body = preset_body("m", parse_args("-ngl 3 --api-key s3cret --host example.org --jinja"))
    assert "s3cret" not in body
    assert "jinja = true" in body


def test_what_is_written_is_read_back() -> None:
    assert parse_preset(preset_body("m", ARGS), source="f") == {"m": ARGS}


def test_every_spelling_of_a_key_is_read_and_the_shared_section_gives_way() -> None:
    text = (
        "version = 1\n; shared\n[*]\nc = 8192\nngl = 8\n\n[a]  # mine\nn-gpu-layers = 9\n"
        "no-mmap = true\nLLAMA_ARG_THREADS = 4 ; four\nload-on-startup = true\n[b]\nmmap = on\n"
    )
    shared = LlamaCppArgs(context=8192, n_gpu_layers=8)
    assert parse_preset(text, source="f") == {
        "a": replace(shared, n_gpu_layers=9, mmap=False, threads=4),
        "b": shared,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[m]\nn-gpu-layer = 3\n",
            r"f, \[m\]: llama.cpp has no option --n-gpu-layer; did you mean",
        ),
        ("[m]\nngl = 3\nn-gpu-layers = 4\n", "contradict each other"),
        ("[m]\nngl: 3\n", "line 2: expected"),
        ("[m]\n", "no section with arguments"),
        ("[m]\nngl = x\n", "expected a number"),
    ],
)
def test_a_preset_that_llama_cpp_would_not_take_is_refused(text: str, words: str) -> None:
    with pytest.raises(AutoplaceError, match=words):
        parse_preset(text, source="f")


def test_a_comment_sign_in_a_value_is_refused() -> None:
    args = LlamaCppArgs(overrides=(("a#b", "CPU"),))
    with pytest.raises(AutoplaceError, match="start a comment"):
        preset_body("m", args)


def test_an_exported_preset_says_what_it_is_for_and_is_whole(tmp_path: Path) -> None:
    header = Header("llama.cpp", "m", "f", "h", "predicted", RunSettings(8, 512, batch=2048))
    path = tmp_path / "deep" / "best.preset.ini"
    text = export_preset(path, "m", ARGS, header)
    assert path.read_text() == text
    found, body = split_header(text, source="f")
    assert found is not None
    assert found.settings == header.settings
    assert parse_preset(text, source="f") == parse_preset(body, source="f") == {"m": ARGS}


@pytest.mark.parametrize(
    ("text", "is_preset"),
    [
        ("# x\n[m]\nngl = 3", True),
        ("version = 1\n[m]", True),
        ("- match:\n    name: x", False),
        ("-ngl 3", False),
        ("LLAMA_ARG_THREADS=4 llama-server -ngl 3", False),
        ("", False),
    ],
)
def test_presets_are_told_from_rules_and_lines(text: str, is_preset: bool) -> None:
    assert looks_like_preset(text) == is_preset
