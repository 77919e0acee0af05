"""The header of a rule file: what it says comes back, and an edited body is noticed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplace.errors import AutoplaceError
from autoplace.placement.settings import KV_TYPES, RunSettings
from autoplace.rules.header import Figure, Header, render_file, sha256_of, split_header

BODY = "- match:\n    name: '^lm_head$'\n"
HEADER = Header(
    engine="builtin",
    model="deepseek-v2-lite",
    fingerprint="0f3c",
    hardware="emulated-2x2gib",
    basis="emulated",
    settings=RunSettings(num_threads=2, prefill_chunk=512, kv_type="q8_0"),
    workload="chat",
    prompt_tokens=512,
    output_tokens=128,
    context_tokens=1024,
    predicted_bytes={"cpu": 5, "cuda:0": 2 * 1024**3},
    measured_bytes={"cpu": 4, "cuda:0": 2 * 1024**3 - 1},
    decode_tok_per_s=Figure(12.5, 12.25, 12.75, 5),
    prefill_latency_s=Figure(1.5, 1.25, 1.75, 5),
    mean_kl=0.0125,
    top1_agreement=0.9375,
    quality_positions=64,
    why="least time for 512 prompt and 128 output tokens",
    gain="1.3 times the best obvious placement, noise 4 %",
    launch=("python -m autoplace bench rules=FILE",),
)


def test_the_header_comes_back_with_the_body_untouched() -> None:
    text = render_file(HEADER, BODY)
    header, body = split_header(text, source="best.rules.yaml")
    assert body == BODY
    assert header is not None
    assert header.body_sha256 == sha256_of(BODY)
    assert render_file(header, body) == text
    assert header.settings == HEADER.settings


def test_people_read_the_same_figures() -> None:
    text = render_file(HEADER, BODY)
    for words in (
        "figures are: emulated",
        "decode: 12.5 tokens/s (12.25 to 12.75, 5 repeats)",
        "cuda:0 2147483648 (2.00 GiB)",
        "quality: mean KL 0.0125 nats, top-1 agreement 93.8% over 64 positions",
        "launch: python -m autoplace bench rules=FILE",
    ):
        assert f"{words}" in text
    header_lines = text[: -len(BODY)].splitlines()
    assert all(line.startswith("#") for line in header_lines)


def test_another_engine_than_the_measured_one_is_said() -> None:
    planned = Header(
        engine="ktransformers-0.3",
        measured_with="builtin",
        model="m",
        fingerprint="f",
        hardware="h",
        basis="measured",
        settings=HEADER.settings,
    )
    assert "measured with builtin, planned for ktransformers-0.3" in render_file(planned, BODY)


def test_a_tampered_body_no_longer_has_the_sha256_of_the_header() -> None:
    text = render_file(HEADER, BODY).replace("lm_head", "lm_heat")
    header, body = split_header(text, source="best.rules.yaml")
    assert header is not None
    assert header.body_sha256 != sha256_of(body)


def test_a_file_without_our_header_is_all_body() -> None:
    text = "# my rules\n" + BODY
    assert split_header(text, source="mine.yaml") == (None, text)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("# ----\n", "", "the header has no end"),
        ("# settings: {", "# settings: [", "'settings' is not JSON"),
        ('"num_threads": 2', '"num_threads": 0', "num_threads must be a positive integer"),
        ('"num_threads": 2', '"num_threads": true', "num_threads must be a positive integer"),
        ('"num_threads": 2', '"threads": 2', "unexpected keyword"),
        ('"kv_type": "q8_0"', '"kv_type": "q3"', "kv_type must be one of f32, f16, bf16, q8_0"),
        ('"format": 1', '"format": 2', "not of format 1"),
        ('"basis": "emulated"', '"basis": "guessed"', "basis must be one of"),
        ('"cuda:0": 2147483648', '"cuda:0": "much"', "predicted_bytes must map devices to bytes"),
        ('"median": 12.5', '"median": "fast"', "decode_tok_per_s must hold numbers"),
        ('"n": 5', '"m": 5', "cannot be read"),
        ("# record: ", "# record: {}\n# record: ", "needs one line 'record', but has 2"),
    ],
)
def test_a_broken_header_is_refused_with_the_reason(old: str, new: str, reason: str) -> None:
    text = render_file(HEADER, BODY)
    assert old in text
    with pytest.raises(AutoplaceError, match=f"best.rules.yaml: .*{re.escape(reason)}"):
        split_header(text.replace(old, new, 1), source="best.rules.yaml")


words = st.text(max_size=30)


@given(
    why=words,
    model=words,
    launch=st.lists(words, max_size=3),
    threads=st.integers(1, 512),
    kv_type=st.sampled_from(sorted(KV_TYPES)),
    decode=st.none() | st.floats(0, 1e6),
)
def test_any_header_comes_back(
    why: str, model: str, launch: list[str], threads: int, kv_type: str, decode: float | None
) -> None:
    header = Header(
        engine="builtin",
        model=model,
        fingerprint="f",
        hardware="h",
        basis="measured",
        settings=RunSettings(threads, 256, kv_type),
        decode_tok_per_s=None if decode is None else Figure(decode, decode, decode),
        why=why,
        launch=tuple(launch),
        body_sha256=sha256_of(BODY),
    )
    assert split_header(render_file(header, BODY), source="s") == (header, BODY)
