"""llama.cpp's RPC servers on loopback as devices: started for a trial, held to their size, stopped.

The servers of old builds take the size themselves (`--mem`). Those of b9993 have no such option:
the kernel limits their data segment (RLIMIT_DATA) once they listen.
"""

import resource
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from autoplace.bench.llama_cpp.program import Ended, Program
from autoplace.bench.llama_cpp.tools import RPC, Tools
from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Device, Machine
from autoplace.units import MIB

START_LIMIT_S = 30.0
POLL_S = 0.02
STACK_BYTES = 8 * MIB
OWN_BYTES = 64 * MIB
"""What a server takes beside its buffers and its threads' stacks."""


@dataclass(frozen=True)
class RpcServer:
    """One running server."""

    device: Device
    program: Program
    held_by: str
    """What enforces the device's size."""

    @property
    def pid(self) -> int:
        return self.program.pid


@contextmanager
def rpc_servers(
    tools: Tools, machine: Machine, *, num_threads: int, largest_tensor_bytes: int
) -> Iterator[tuple[RpcServer, ...]]:
    """The machine's servers, listening; none where it has none. They are killed at the end.

    `largest_tensor_bytes` is on top of each size: a server receives a tensor before it copies it
    to its buffer. Raise `AutoplaceError` for a port in use.
    """
    with ExitStack() as stack:
        servers = []
        for device in machine.gpus:
            if device.endpoint is not None:
                refuse_used_port(device.endpoint, f"{device.name}'s RPC server")
                command, held_by = _command(tools, device, num_threads)
                program = stack.enter_context(Program(command))
                servers.append(RpcServer(device, program, held_by))
        for server in servers:
            _wait_until_it_listens(server)
            if server.held_by == "RLIMIT_DATA":
                _limit(server, num_threads * STACK_BYTES + OWN_BYTES + largest_tensor_bytes)
        yield tuple(servers)


def refuse_used_port(endpoint: str, what: str) -> None:
    """Raise `AutoplaceError` where somebody listens, or cannot be kept from it."""
    host, _, port = endpoint.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise AutoplaceError(
                f"{what} cannot listen on {endpoint}: {error.strerror}; end what uses the port, "
                "or give another"
            ) from error


def died(servers: tuple[RpcServer, ...]) -> Mapping[str, Ended]:
    """Device name → how its server ended, of those that run no more."""
    return {
        server.device.name: server.program.end() for server in servers if not server.program.lives
    }


def _command(tools: Tools, device: Device, num_threads: int) -> tuple[list[str], str]:
    program = tools.programs[RPC]
    assert device.endpoint is not None
    host, _, port = device.endpoint.rpartition(":")
    words = [program.path, "-H", host, "-p", port]
    if "--threads" in program.options:
        words += ["-t", str(num_threads)]
    if "--mem" in program.options:
        return [*words, "-m", str(device.budget_bytes // MIB)], "rpc-server --mem"
    return words, "RLIMIT_DATA"


def _wait_until_it_listens(server: RpcServer) -> None:
    assert server.device.endpoint is not None
    host, _, port = server.device.endpoint.rpartition(":")
    deadline_s = time.monotonic() + START_LIMIT_S
    while server.program.lives and time.monotonic() < deadline_s:
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
        except OSError:
            time.sleep(POLL_S)
        else:
            return
    ended = server.program.end()
    said = " ".join(ended.log[-1:]) or ended.how
    raise AutoplaceError(f"{server.device.name}'s RPC server does not listen: {said}")


def _limit(server: RpcServer, beside_bytes: int) -> None:
    """From now on it may have its size more than it has."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    has_kib = int(status.partition("VmData:")[2].split()[0])
    limit = has_kib * 1024 + server.device.budget_bytes + beside_bytes
    psutil.Process(server.pid).rlimit(resource.RLIMIT_DATA, (limit, limit))
