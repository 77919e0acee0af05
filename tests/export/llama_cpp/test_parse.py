"""Lines that people write for llama.cpp: every spelling read, contradictions named."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import LlamaCppArgs, parse_args
from autoplace.export.llama_cpp.args import FLASH_ATTENTION, KV_TYPE_NAMES

LINE = (
    "-m m.gguf -ngl 20 -ts 3,1 -ot exps=CPU,a=CUDA1 -ctk q8_0 -b 1024 -ub 256 -t 4 -tb 8 -fa on "
    "-c 4096 -mg 1 -sm row --no-mmap -nkvo --rpc h:1 -dev CUDA0,CUDA1 -fit off -np 2"
)
LONG = (
    "llama-server --model m.gguf --n-gpu-layers 20 --tensor_split 3/1 --override-tensor exps=CPU "
    "--override-tensor a=CUDA1 --cache-type-k q8_0 --batch-size 1024 --ubatch-size 256 --threads 4 "
    "--threads-batch 8 --flash-attn 1 --ctx-size 4096 --main-gpu 1 --split-mode row --no_mmap "
    "--no-kv-offload --rpc h:1 --device CUDA0,CUDA1 --fit 0 --parallel 2"
)


def test_long_and_short_spellings_mean_the_same() -> None:
    assert parse_args(LONG) == parse_args(LINE)
    assert parse_args(LINE).batch_threads == 8


def test_variables_before_the_program_count_as_words() -> None:
    line = "LLAMA_ARG_N_GPU_LAYERS=20 LLAMA_ARG_NO_MMAP=x LLAMA_ARG_PORT=80 ./llama-cli -t 4"
    assert parse_args(line) == LlamaCppArgs(n_gpu_layers=20, mmap=False, threads=4)


def test_a_line_of_the_benchmark_is_read_in_its_dialect() -> None:
    line = "/x/llama-bench -ts 3/1 -ot 'exps=CPU;a=CUDA1' -mmp 0 -nkvo 1 -fa 1 -p 512 -r 3"
    assert parse_args(line) == LlamaCppArgs(
        tensor_split=(3.0, 1.0),
        overrides=(("exps", "CPU"), ("a", "CUDA1")),
        mmap=False,
        kv_offload=False,
        flash_attn="on",
        extra=("-p", "512", "-r", "3"),
    )


def test_lines_over_several_rows_and_comments_are_read() -> None:
    assert parse_args("# mine\nllama-server \\\n  -ngl 3 \\\n  -t 2").threads == 2


def test_cpu_moe_is_its_pattern() -> None:
    names = ["blk.1.ffn_gate_up_exps.weight", "blk.1.ffn_down_chexps.weight", "blk.2.ffn_up_exps"]
    (pattern, buffer) = parse_args("-cmoe").overrides[0]
    assert buffer == "CPU"
    assert all(re.search(pattern, name) for name in names)
    first = parse_args("-ncmoe 2").overrides
    assert [n for n in names if any(re.search(p, n) for p, _ in first)] == names[:2]


def test_other_words_are_passed_on_and_the_benchmark_is_told_of_those_it_has() -> None:
    args = parse_args("--no-op-offload --poll 50")
    assert args.extra == ("--no-op-offload", "--poll", "50")
    assert args.to_command("llama-bench")[1:] == ["-nopo", "1", "--poll", "50"]


@pytest.mark.parametrize("word", ["--port 8080", "--mlock", "--api-key k"])
def test_the_benchmark_is_not_started_without_words_that_it_has_not(word: str) -> None:
    args = parse_args(f"--poll 50 {word}")
    assert args.to_command("llama-server")[3:] == word.split()
    with pytest.raises(AutoplaceError, match=f"llama-bench has no {word.split()[0]} to measure"):
        args.to_command("llama-bench")


def test_a_physical_batch_is_cut_to_the_logical_one() -> None:
    assert parse_args("-b 128").ubatch == 128
    assert parse_args("-ub 4096").ubatch == 2048


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        ("-ngl 3 --n-gpu-layers 4", "-ngl 3", "--n-gpu-layers 4"),
        ("--mmap --no-mmap", "--mmap", "--no-mmap"),
        ("LLAMA_ARG_MMAP=1 llama-server --no-mmap", "LLAMA_ARG_MMAP=1", "--no-mmap"),
        ("-cmoe -ncmoe 3", "-cmoe", "-ncmoe 3"),
        ("-b 256 -ub 512", "-b 256", "-ub 512"),
        ("-fa off -ctv q8_0", "-ctv q8_0", "-fa off"),
        ("-sm none -ts 1,1", "-sm none", "-ts 1,1"),
        ("-ngl 0 -ts 1,1", "-ngl 0", "-ts 1,1"),
        ("-dev none -ngl 3", "-dev none", "-ngl 3"),
        ("-dev CUDA0 -ts 1,1", "-dev CUDA0", "-ts 1,1"),
        ("-fit on -ngl 3", "-fit on", "-ngl 3"),
        ("-fit on -ot a=CPU", "-fit on", "-ot a=CPU"),
        ("-fit off -fitt 512", "-fit off", "-fitt 512"),
        ("-ot a=RPC0[h:1] --rpc h:2", "-ot a=RPC0[h:1]", "--rpc h:2"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused_by_both_words(
    line: str, first: str, second: str
) -> None:
    with pytest.raises(AutoplaceError) as caught:
        parse_args(line)
    assert f"{first} and {second} contradict each other" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("-ngl 3 -ngl 3", LlamaCppArgs(n_gpu_layers=3)),
        ("-fa auto -ctv q8_0", LlamaCppArgs(flash_attn="auto", cache_type_v="q8_0")),
        ("-ngl auto -fit on", LlamaCppArgs(fit=True)),
        ("-dev none -ngl 0", LlamaCppArgs(n_gpu_layers=0, devices=("none",))),
    ],
)
def test_what_only_says_a_thing_twice_is_no_contradiction(line: str, args: LlamaCppArgs) -> None:
    assert parse_args(line) == args


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-nlg 3", "no option -nlg; did you mean '-ngl'"),
        ("--flash-atn on", "did you mean '--flash-attn'"),
        ("llama-bench -c 4096", "llama-bench has no option -c"),
        ("LLAMA_ARG_N_GPU_LAYER=3 llama-cli", "did you mean 'LLAMA_ARG_N_GPU_LAYERS'"),
        ("-ngl", "-ngl needs a value"),
        ("-ngl x", "-ngl x: expected a number from 0 on"),
        ("-ts a,b", "expected shares"),
        ("-ot exps", "expected PATTERN=BUFFER"),
        ("-ctk q9", "expected one of f32, f16"),
        ("-fa maybe", "expected one of on, off, auto"),
        ("-ot a=RPC0[h:1]", "there is no --rpc"),
        ("llama-bench -ub 256,512", "several tests"),
        ("x.gguf", "expected an option of llama.cpp"),
        ("-ot 'x", "not a command line"),
    ],
)
def test_what_llama_cpp_would_not_take_is_refused(line: str, words: str) -> None:
    with pytest.raises(AutoplaceError, match=re.escape(words)):
        parse_args(line)


@given(
    args=st.builds(
        LlamaCppArgs,
        n_gpu_layers=st.none() | st.integers(1, 99),
        tensor_split=st.lists(st.integers(0, 99).map(float), max_size=3).map(tuple),
        overrides=st.lists(
            st.tuples(
                st.sampled_from([r"blk\.(1|2)\.x", "^a b$"]), st.sampled_from(["CPU", "CUDA0"])
            ),
            max_size=3,
        ).map(tuple),
        cache_type_k=st.sampled_from(KV_TYPE_NAMES[1:]),
        ubatch=st.sampled_from([64, 512, 2048]),
        threads=st.none() | st.integers(1, 64),
        flash_attn=st.sampled_from(FLASH_ATTENTION),
        mmap=st.booleans(),
        kv_offload=st.booleans(),
        model=st.none() | st.just("a b.gguf"),
    ),
    program=st.sampled_from(["llama-server", "llama-cli", "llama-bench"]),
)
def test_what_is_written_is_read_back(args: LlamaCppArgs, program: str) -> None:
    assert parse_args(args.line(program)) == args
