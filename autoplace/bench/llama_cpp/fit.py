"""llama.cpp's own `--fit` for a model on a machine: the arguments that it comes to."""

import time
from dataclasses import replace

from autoplace.bench.llama_cpp.log import last_error
from autoplace.bench.llama_cpp.program import Program
from autoplace.bench.llama_cpp.rpc_servers import RpcServer, rpc_servers
from autoplace.bench.llama_cpp.tools import FIT, Tools
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.parse import parse_args
from autoplace.hardware.host import detect_host
from autoplace.hardware.machine import Machine
from autoplace.units import MIB

LIMIT_S = 120.0


def fitted_arguments(
    args: LlamaCppArgs, tools: Tools, machine: Machine, model_path: str
) -> LlamaCppArgs:
    """`args` with the layers, the split and the overrides that `llama-fit-params` prints.

    On real GPUs it leaves its default margin free. An RPC server that the kernel limits reports
    the whole host's memory, so the margin is set to what its device does not have.
    Raise `AutoplaceError` where it finds nothing, in its own words.
    """
    program = tools.programs[FIT]
    asked = replace(args, model=model_path, fit=None, parallel=None)
    with rpc_servers(tools, machine, num_threads=1, largest_tensor_bytes=0) as servers:
        words = [*asked.to_command(program.path), *_margins(servers)]
        program.require(words)
        with Program(words) as running:
            ended = running.wait(time.monotonic() + LIMIT_S)
    line = next((line for line in ended.answer if line.startswith("-c ")), None)
    if ended.returncode != 0 or line is None:
        why = last_error(ended.log, model_path) or ended.how
        raise AutoplaceError(f"{FIT}: {why}")
    servers_word = f"--rpc {','.join(args.rpc)} " if args.rpc else ""
    found = parse_args(servers_word + line)
    return replace(
        args,
        n_gpu_layers=found.n_gpu_layers,
        tensor_split=found.tensor_split,
        overrides=found.overrides,
    )


def _margins(servers: tuple[RpcServer, ...]) -> list[str]:
    if not any(server.held_by == "RLIMIT_DATA" for server in servers):
        return []
    host_mib = detect_host().memory_bytes // MIB
    margins = [host_mib - server.device.budget_bytes // MIB for server in servers]
    return ["-fitt", ",".join(map(str, margins))]
