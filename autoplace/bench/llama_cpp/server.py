"""Measures with a server of llama.cpp: `llama-server`, or the one in the `xllamacpp` wheel."""

import json
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from itertools import pairwise

from autoplace.bench.llama_cpp.completion import ServerClient
from autoplace.bench.llama_cpp.log import buffers
from autoplace.bench.llama_cpp.measured import Measured, ProgramFailedError
from autoplace.bench.llama_cpp.program import Program
from autoplace.bench.llama_cpp.rpc_servers import refuse_used_port
from autoplace.bench.llama_cpp.tools import SERVER
from autoplace.bench.measurement import workload_tokens
from autoplace.bench.request import LlamaCppRun, TrialRequest
from autoplace.export.llama_cpp.args import LlamaCppArgs

HOST = "127.0.0.1"
QUIET_CACHES = (("--cache-ram", "0"), ("--ctx-checkpoints", "0"))
"""What would copy the cache aside between requests; builds that know them not do no such thing."""
VERBOSE = ("-lv", "4")
"""The level at which buffers are logged."""


def measure_with_server(
    request: TrialRequest,
    run: LlamaCppRun,
    *,
    vocab: int,
    tensor_bytes: int,
    servers: Callable[[], Iterable[int]],
    deadline_s: float,
    repeats_until_s: float,
) -> Measured:
    """Load once, then repeat. Raise `ProgramFailedError`, `AutoplaceError`."""
    workload, began_s = request.workload, time.monotonic()
    args = replace(run.args, context=workload.context_tokens, parallel=1)
    command, address = (
        _wheel_command(args) if run.tools.wheel is not None else _server_command(run, args)
    )
    prompt, output = workload_tokens(workload, vocab, request.measure.seed)
    with Program(command, name=run.tools.measurer) as program:
        client = ServerClient(program, address or _announced(program, deadline_s), deadline_s)
        client.wait_until_loaded()
        load_s = time.monotonic() - began_s
        measurement = client.measure(
            prompt,
            len(output),
            request.measure,
            others=servers,
            repeats_until_s=repeats_until_s,
        )
        log = program.end().log
    by_device = buffers(log, request.machine, tensor_bytes=tensor_bytes)
    return Measured(measurement, by_device, load_s, build=run.tools.version, log=log)


def _server_command(run: LlamaCppRun, args: LlamaCppArgs) -> tuple[list[str], str]:
    """On the port that the user's own words name, else on one that is free."""
    program = run.tools.programs[SERVER]
    words = args.to_command(program.path)
    port = _named_port(words)
    if port is None:
        port = _free_port()
        words += ["--host", HOST, "--port", str(port)]
    else:
        refuse_used_port(f"{HOST}:{port}", SERVER)
    for word, value in QUIET_CACHES:
        words += [word, value] if word in program.options else []
    words += VERBOSE if VERBOSE[0] in program.options else ["-v"]
    program.require(words)
    return words, f"http://{HOST}:{port}"


def _named_port(words: list[str]) -> int | None:
    for word, value in pairwise(words):
        if word == "--port" and value.isdecimal():
            return int(value)
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wheel_command(args: LlamaCppArgs) -> tuple[list[str], None]:
    """Its address is told once it has loaded."""
    job = json.dumps(asdict(args))
    return [sys.executable, "-m", "autoplace.bench.llama_cpp.wheel_main", job], None


def _announced(program: Program, deadline_s: float) -> str:
    """The wheel's address; it loads the model first."""
    while not program.answer:
        if not program.lives or time.monotonic() > deadline_s:
            raise ProgramFailedError(program.wait(deadline_s))
        time.sleep(0.05)
    return program.answer[0]
