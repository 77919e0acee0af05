"""One trial of llama.cpp from its request to its outcome. Every failure is an outcome."""

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from autoplace.architectures import spec_from_gguf
from autoplace.architectures.spec import ModelSpec
from autoplace.bench.gates import judge
from autoplace.bench.llama_cpp.failure import failed_program, not_held
from autoplace.bench.llama_cpp.llama_bench import measure_with_bench
from autoplace.bench.llama_cpp.measured import Measured, ProgramFailedError
from autoplace.bench.llama_cpp.rpc_servers import RpcServer, rpc_servers
from autoplace.bench.llama_cpp.server import measure_with_server
from autoplace.bench.llama_cpp.tools import BENCH
from autoplace.bench.llama_cpp.traffic import decode_bytes
from autoplace.bench.measurement import MEASURE_SHARE
from autoplace.bench.metrics import Basis, Metrics, Outcome, Status
from autoplace.bench.request import LlamaCppRun, TrialRequest
from autoplace.bench.residency import resident_share, warm
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.layout import EMBEDDING
from autoplace.hardware.activity import gpus_in_use
from autoplace.units import format_bytes
from autoplace.weights.gguf_file import GGUFFile

BEYOND_SHARE, BEYOND_BYTES = 1.03, 300 * 1024**2
"""A device that takes more than both over its prediction is told of."""


@dataclass(frozen=True)
class _Opened:
    """A request with its file."""

    request: TrialRequest
    run: LlamaCppRun
    gguf: GGUFFile
    spec: ModelSpec

    @property
    def basis(self) -> Basis:
        return Basis.of(self.request.machine)

    @property
    def tensor_bytes(self) -> int:
        """Of all tensors; a tied output may be held again."""
        tied = self.spec.geometry.tied_embeddings
        again = self.spec.tensors[EMBEDDING].n_bytes if tied else 0
        return sum(info.n_bytes for info in self.spec.tensors.values()) + again


def run_llama_cpp_trial(request: TrialRequest) -> Outcome:
    """Start what is needed, measure, stop it, judge."""
    basis = Basis.of(request.machine)
    start_s = time.monotonic()
    try:
        in_use = gpus_in_use(request.machine)
        if in_use is not None:
            return Outcome(Status.CONTENDED, basis, in_use)
        outcome = _measured(_opened(request), start_s)
    except AutoplaceError as error:
        outcome = Outcome(Status.REFUSED, basis, str(error))
    return replace(outcome, environment={**outcome.environment, **_state(request)})


def _opened(request: TrialRequest) -> _Opened:
    """The arguments get what only the trial knows: the file, and where the RPC servers are."""
    assert request.llama_cpp is not None
    endpoints = tuple(gpu.endpoint for gpu in request.machine.gpus if gpu.endpoint)
    args = replace(
        request.llama_cpp.args,
        model=request.model_path,
        rpc=endpoints or request.llama_cpp.args.rpc,
    )
    gguf = GGUFFile.open(Path(request.model_path))
    return _Opened(request, replace(request.llama_cpp, args=args), gguf, spec_from_gguf(gguf))


def _measured(opened: _Opened, start_s: float) -> Outcome:
    request, run = opened.request, opened.run
    run.tools.require_devices(request.machine)
    tensors = opened.spec.tensors.values()
    with ExitStack() as stack:
        servers = stack.enter_context(
            rpc_servers(
                run.tools,
                request.machine,
                num_threads=run.args.threads or request.machine.num_cores,
                largest_tensor_bytes=max(info.n_bytes for info in tensors),
            )
        )
        if run.args.mmap:
            _warm(opened)
        try:
            measured = _measure(opened, servers, start_s)
        except ProgramFailedError as error:
            return failed_program(error.ended, request, servers)
    outcome = not_held(measured, request) or _judged(measured, opened)
    held = {f"{server.device.name}_held_by": server.held_by for server in servers}
    return replace(outcome, environment={**outcome.environment, **held})


def _measure(opened: _Opened, servers: tuple[RpcServer, ...], start_s: float) -> Measured:
    request, limit_s = opened.request, opened.request.measure.time_limit_s

    def pids() -> list[int]:
        return [server.pid for server in servers]

    deadline_s, repeats_until_s = start_s + limit_s, start_s + MEASURE_SHARE * limit_s
    if opened.run.tools.measurer == BENCH:
        return measure_with_bench(
            request,
            opened.run,
            tensor_bytes=opened.tensor_bytes,
            servers=pids,
            deadline_s=deadline_s,
            repeats_until_s=repeats_until_s,
        )
    return measure_with_server(
        request,
        opened.run,
        vocab=opened.spec.geometry.vocab,
        tensor_bytes=opened.tensor_bytes,
        servers=pids,
        deadline_s=deadline_s,
        repeats_until_s=repeats_until_s,
    )


def _judged(measured: Measured, opened: _Opened) -> Outcome:
    """Cold is told by pages read from the disk while it was timed: llama.cpp may hold repacked
    copies, so that the file itself need not stay in the page cache."""
    request, measurement = opened.request, measured.measurement
    by_device = decode_bytes(opened.spec, opened.run.args, request.machine)
    verdict = judge(
        measurement,
        settings=request.measure,
        machine=request.machine,
        decode_bytes=by_device,
        resident=1.0,
    )
    environment = _environment(measured, request)
    if verdict is not None:
        return Outcome(verdict.status, opened.basis, verdict.reason, environment=environment)
    metrics = Metrics(
        decode_tok_per_s=measurement.decode_tok_per_s,
        prefill_latency_s=measurement.prefill_latency_s,
        prefill_tok_per_s=request.workload.prompt_tokens / measurement.prefill_latency_s.median,
        bytes_by_device=measured.bytes_by_device,
        load_s=measured.load_s,
        bytes_per_token=round(sum(by_device.values())),
    )
    return Outcome(Status.OK, opened.basis, metrics=metrics, environment=environment)


def _environment(measured: Measured, request: TrialRequest) -> dict[str, str | int | float]:
    """What the numbers were measured under."""
    assert request.llama_cpp is not None
    environment: dict[str, str | int | float] = {
        "tool": request.llama_cpp.tools.measurer,
        "build": measured.build,
        **measured.measurement.environment(),
    }
    beyond = _beyond_prediction(measured, request.llama_cpp.predicted_bytes)
    return environment | ({"memory_beyond_prediction": beyond} if beyond else {})


def _beyond_prediction(measured: Measured, predicted: Mapping[str, int]) -> str:
    return "; ".join(
        f"{name} took {format_bytes(found.peak)}, {format_bytes(predicted[name])} were predicted"
        for name, found in measured.bytes_by_device.items()
        if name in predicted
        and found.peak > max(BEYOND_SHARE * predicted[name], predicted[name] + BEYOND_BYTES)
    )


def _warm(opened: _Opened) -> None:
    """Bring the file into the page cache, where there is room for it."""
    data = [opened.gguf.data(name) for name in opened.spec.tensors]
    has_room = sum(part.nbytes for part in data) < psutil.virtual_memory().total
    if has_room and resident_share(data) < 1.0:
        warm(data)


def _state(request: TrialRequest) -> dict[str, str | int | float]:
    assert request.llama_cpp is not None
    return {
        "threads": request.llama_cpp.args.threads or request.machine.num_cores,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity_cores": len(os.sched_getaffinity(0)),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
        "load_average": round(psutil.getloadavg()[0], 2),
    }
