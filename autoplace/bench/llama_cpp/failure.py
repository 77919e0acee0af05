"""Why a trial of llama.cpp failed: by exit code, signal and counters first, by its log last."""

from collections.abc import Sequence

from autoplace.bench.llama_cpp.log import cannot_load, last_error, no_memory
from autoplace.bench.llama_cpp.measured import Measured
from autoplace.bench.llama_cpp.program import Ended
from autoplace.bench.llama_cpp.rpc_servers import RpcServer, died
from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.bench.request import TrialRequest
from autoplace.units import format_bytes

EXIT_ARGUMENTS = 2
"""Of `wheel_main`, for what the wheel cannot be told."""


def failed_program(
    ended: Ended, request: TrialRequest, servers: tuple[RpcServer, ...] = ()
) -> Outcome:
    """The outcome of a trial whose program ended without an answer."""
    basis = Basis.of(request.machine)
    exit_code = {"program_exit": ended.returncode}
    if ended.for_memory:
        reason = f"out of memory on cpu: the kernel killed {ended.program}"
        return Outcome.out_of_memory("cpu", reason, basis, environment=exit_code)
    if ended.timed_out:
        limit_s = request.measure.time_limit_s
        reason = f"no result within {limit_s:g} s; {ended.program} was killed"
        return Outcome(Status.TIMED_OUT, basis, reason, environment=exit_code)
    of_server = _dead_server(servers, basis)
    if of_server is not None:
        return of_server
    failed = no_memory(ended.log, request.machine) if ended.returncode != -9 else None
    if failed is not None:
        device = failed.device or _only_gpu_or_host(request)
        size = "" if failed.n_bytes is None else f" ({format_bytes(failed.n_bytes)})"
        reason = f"out of memory on {device}{size}: {failed.line}"
        return Outcome.out_of_memory(
            device, reason, basis, over_bytes=failed.n_bytes, environment=exit_code
        )
    return _by_its_words(ended, request, basis, exit_code)


def _by_its_words(
    ended: Ended, request: TrialRequest, basis: Basis, exit_code: dict[str, int]
) -> Outcome:
    if ended.returncode < 0:
        why = last_error(ended.log[-20:], request.model_path)
        reason = ended.how + (f": {why}" if why else "")
        return Outcome(Status.CRASHED, basis, reason, environment=exit_code)
    why = cannot_load(ended.log, request.model_path)
    if why is not None:
        reason = f"llama.cpp cannot load the file: {why}"
        return Outcome(Status.REFUSED, basis, reason, environment=exit_code)
    why = last_error([*ended.log, *ended.answer], request.model_path)
    if why is not None:
        return Outcome(Status.REFUSED, basis, f"{ended.program}: {why}", environment=exit_code)
    return Outcome(Status.CRASHED, basis, f"{ended.how} and said nothing", environment=exit_code)


def _dead_server(servers: tuple[RpcServer, ...], basis: Basis) -> Outcome | None:
    for device, ended in died(servers).items():
        exit_code = {"rpc_server_exit": ended.returncode}
        if ended.for_memory or _ran_out(ended.log):
            reason = f"out of memory on {device}: its RPC server ended for it"
            return Outcome.out_of_memory(device, reason, basis, environment=exit_code)
        reason = f"the RPC server of {device} died: {ended.how}"
        return Outcome(Status.CRASHED, basis, reason, environment=exit_code)
    return None


def _ran_out(log: Sequence[str]) -> bool:
    return any("bad_alloc" in line or "failed to allocate" in line for line in log)


def _only_gpu_or_host(request: TrialRequest) -> str:
    """Where the log names no device."""
    gpus = request.machine.gpus
    return gpus[0].name if len(gpus) == 1 and not gpus[0].endpoint else "cpu"


def not_held(measured: Measured, request: TrialRequest) -> Outcome | None:
    """Whether the devices are what they should be: RPC servers in use, none over its size.

    The kernel's limit on a server leaves room for what is not its buffers; the buffers themselves
    are held to the size here.
    """
    basis = Basis.of(request.machine)
    for gpu in request.machine.gpus:
        if gpu.endpoint is None:
            continue
        if not any("using device" in line and gpu.endpoint in line for line in measured.log):
            reason = f"llama.cpp did not take {gpu.name}, the RPC server on {gpu.endpoint}"
            return Outcome(Status.REFUSED, basis, reason)
        found = measured.bytes_by_device.get(gpu.name)
        over = found.peak - gpu.budget_bytes if found else 0
        if over > 0:
            reason = f"out of memory on {gpu.name}: its buffers are {over} B over its size"
            return Outcome.out_of_memory(gpu.name, reason, basis, over_bytes=over)
    return None
