"""Trials of a real small model by llama.cpp, good ones and such that fail."""

import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autoplace.bench.llama_cpp.tools import BENCH, SERVER, WHEEL, Tools, find_tools
from autoplace.bench.llama_cpp.trial import run_llama_cpp_trial
from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.export.llama_cpp.args import LlamaCppArgs
from tests.bench.llama_cpp.installed import (
    ENDLESS,
    MEASURE,
    MODEL,
    RPC,
    native_or_skip,
    request,
)

TOOLS = (WHEEL, BENCH, SERVER)


def tools_of(tool: str) -> Tools:
    if tool == WHEEL:
        return find_tools(tool=WHEEL)
    tools = native_or_skip(tool)
    return replace(tools, programs={name: p for name, p in tools.programs.items() if name == tool})


@pytest.mark.parametrize("tool", TOOLS)
def test_a_small_model_is_measured_with_its_bytes(tool: str) -> None:
    outcome = run_llama_cpp_trial(request(tools_of(tool)))
    assert outcome.status is Status.OK, outcome.reason
    assert outcome.basis is Basis.MEASURED
    metrics = outcome.metrics
    assert metrics is not None
    assert metrics.decode_tok_per_s.n == metrics.prefill_latency_s.n == 2
    assert metrics.decode_tok_per_s.low > 0
    assert metrics.prefill_tok_per_s * metrics.prefill_latency_s.median == pytest.approx(16)
    # All tensors' blocks, which the file holds with its header and vocabulary.
    size = MODEL.stat().st_size
    assert 0.95 * size < metrics.bytes_by_device["cpu"].weights < size
    assert metrics.bytes_by_device["cpu"].kv_cache > 0
    assert outcome.environment["tool"] == tool


@pytest.mark.parametrize("tool", TOOLS)
def test_a_trial_over_its_time_limit_is_ended_with_all_it_started(tool: str) -> None:
    slow = request(tools_of(tool), workload=ENDLESS, measure=replace(MEASURE, time_limit_s=3))
    outcome = run_llama_cpp_trial(slow)
    assert outcome.status is Status.TIMED_OUT
    assert "no result within 3 s" in outcome.reason
    assert not psutil.Process().children(recursive=True)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_killed_program_is_a_crash_that_names_the_signal(tool: str) -> None:
    endless = request(tools_of(tool), workload=ENDLESS)
    killer = threading.Thread(target=_kill_the_child)
    killer.start()
    outcome = run_llama_cpp_trial(endless)
    killer.join()
    assert outcome.status is Status.CRASHED
    assert "was killed by SIGKILL" in outcome.reason
    assert outcome.environment["program_exit"] == -signal.SIGKILL


def _kill_the_child() -> None:
    """The first that has lived two seconds: llama-bench's call for the prompt is over then."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if time.time() - child.create_time() > 2.0:
                    child.kill()
                    return
        time.sleep(0.05)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_that_llama_cpp_does_not_load_is_refused_in_its_words(
    tool: str, tmp_path: Path
) -> None:
    unknown = tmp_path / "unknown.gguf"
    data = MODEL.read_bytes()
    unknown.write_bytes(data.replace(b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0gptX", 1))
    outcome = run_llama_cpp_trial(request(tools_of(tool), model=unknown))
    assert outcome.status is Status.REFUSED
    assert "llama.cpp cannot load the file" in outcome.reason
    assert "gptX" in outcome.reason
    assert str(tmp_path) not in outcome.reason
    assert "\n" not in outcome.reason


def test_the_wheel_says_what_it_cannot_be_told() -> None:
    outcome = run_llama_cpp_trial(
        request(find_tools(tool=WHEEL), args=LlamaCppArgs(devices=("CUDA0",)))
    )
    assert outcome.status is Status.REFUSED
    assert "the xllamacpp wheel cannot be told -dev" in outcome.reason


def rpc_trial(*, args: LlamaCppArgs) -> Outcome:
    return run_llama_cpp_trial(
        request(native_or_skip(BENCH, RPC), args=args, hardware="rpc-64-128mib")
    )


def test_rpc_servers_are_devices_that_split_and_overrides_act_on() -> None:
    split = LlamaCppArgs(
        threads=1,
        tensor_split=(1, 2),
        overrides=((r"blk\.29\.ffn", "RPC0[127.0.0.1:15052]"),),
    )
    outcome = rpc_trial(args=split)
    assert outcome.status is Status.OK, outcome.reason
    assert outcome.basis is Basis.EMULATED
    assert outcome.metrics is not None
    without = rpc_trial(args=replace(split, overrides=()))
    assert without.metrics is not None
    taken, plain = outcome.metrics.bytes_by_device, without.metrics.bytes_by_device
    assert plain["rpc:1"].weights > 2 * plain["rpc:0"].weights
    # The override moves layer 29's feed-forward from the second server to the first.
    moved = taken["rpc:0"].weights - plain["rpc:0"].weights
    assert moved > 0
    assert plain["rpc:1"].weights - taken["rpc:1"].weights == pytest.approx(moved, abs=20_000)
    assert not psutil.Process().children(recursive=True)


def test_a_device_too_small_for_its_layers_is_out_of_memory() -> None:
    outcome = rpc_trial(args=LlamaCppArgs(threads=1, tensor_split=(9, 1)))
    assert outcome.status is Status.OUT_OF_MEMORY
    assert outcome.out_of_memory_device == "rpc:0"


def test_a_used_port_is_named() -> None:
    tools = native_or_skip(BENCH, RPC)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 15052))
        taken.listen()
        outcome = run_llama_cpp_trial(request(tools, hardware="rpc-64-128mib"))
    assert outcome.status is Status.REFUSED
    assert "rpc:0's RPC server cannot listen on 127.0.0.1:15052" in outcome.reason


def test_a_port_that_the_users_line_names_and_somebody_has_is_named() -> None:
    tools = tools_of(SERVER)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        outcome = run_llama_cpp_trial(request(tools, args=LlamaCppArgs(extra=("--port", port))))
    assert outcome.status is Status.REFUSED
    assert f"cannot listen on 127.0.0.1:{port}" in outcome.reason
