"""llama.cpp's arguments as words: one record, two dialects."""

import pytest

from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import LlamaCppArgs

FULL = LlamaCppArgs(
    n_gpu_layers=29,
    tensor_split=(14.0, 15.0),
    overrides=((r"blk\.(1|2)\.ffn_(up|down)_exps", "CPU"), ("^output$", "CUDA1")),
    cache_type_k="q8_0",
    ubatch=256,
    threads=4,
    flash_attn="on",
    context=4096,
    mmap=False,
    kv_offload=False,
    rpc=("127.0.0.1:50052",),
    devices=("CUDA0", "CUDA1"),
    fit=False,
    parallel=1,
    model="m.gguf",
    extra=("--no-warmup",),
)


def test_defaults_say_nothing() -> None:
    assert LlamaCppArgs().to_command("llama-server") == ["llama-server"]
    assert LlamaCppArgs().to_command("llama-bench") == ["llama-bench"]


def test_the_server_takes_commas_and_switches() -> None:
    assert FULL.line("llama-server") == (
        "llama-server --rpc 127.0.0.1:50052 -m m.gguf -dev CUDA0,CUDA1 -ngl 29 -ts 14,15 -t 4 "
        "-ub 256 -ctk q8_0 -fa on -c 4096 --no-mmap -nkvo -ot "
        r"'blk\.(1|2)\.ffn_(up|down)_exps=CPU,^output$=CUDA1' -fit off -np 1 --no-warmup"
    )


def test_the_benchmark_takes_slashes_semicolons_and_numbers() -> None:
    assert FULL.line("/opt/bin/llama-bench") == (
        "/opt/bin/llama-bench -rpc 127.0.0.1:50052 -m m.gguf -dev CUDA0/CUDA1 -ngl 29 -ts 14/15 "
        "-t 4 -ub 256 -ctk q8_0 -fa on -mmp 0 -nkvo 1 -ot "
        r"'blk\.(1|2)\.ffn_(up|down)_exps=CPU;^output$=CUDA1' --no-warmup"
    )


def test_fitting_is_a_margin_in_the_benchmark() -> None:
    args = LlamaCppArgs(fit=True)
    assert args.to_command("llama-bench")[1:] == ["-fitt", "1024"]
    assert args.to_command("llama-server")[1:] == ["-fit", "on"]


def test_the_benchmark_refuses_two_numbers_of_threads() -> None:
    args = LlamaCppArgs(threads=4, threads_batch=8)
    assert args.to_command("llama-cli")[1:] == ["-t", "4", "-tb", "8"]
    with pytest.raises(AutoplaceError, match=r"one number of threads, but 4 .* and 8"):
        args.to_command("llama-bench")


@pytest.mark.parametrize("pattern", ["a{1,2}", "a=b"])
def test_a_pattern_that_llama_cpp_would_cut_is_refused(pattern: str) -> None:
    with pytest.raises(AutoplaceError, match="cuts patterns at"):
        LlamaCppArgs(overrides=((pattern, "CPU"),)).to_command("llama-server")
