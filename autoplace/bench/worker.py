"""One trial from its request to its outcome: load, measure, compare, tear down, judge."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autoplace.architectures import spec_from_gguf
from autoplace.architectures.spec import ModelSpec
from autoplace.bench.devices import (
    not_freed,
    note_baseline,
    recorded_state,
    synchronise,
)
from autoplace.bench.failure import failed
from autoplace.bench.gates import judge
from autoplace.bench.measure import check_logits, measure
from autoplace.bench.measurement import MEASURE_SHARE, workload_tokens
from autoplace.bench.metrics import Basis, DeviceBytes, Metrics, Outcome, Quality, Status
from autoplace.bench.quality import cached_logits, compare, quality_tokens, reference_path
from autoplace.bench.request import TrialRequest
from autoplace.bench.residency import resident_share, warm
from autoplace.bench.roles import seconds_by_role
from autoplace.bench.threads import recorded_threads, set_threads
from autoplace.engine.loader import load_model
from autoplace.engine.model import HybridModel
from autoplace.engine.reference import reference_logits
from autoplace.errors import AutoplaceError
from autoplace.hardware.activity import gpus_in_use
from autoplace.hardware.ledger import Ledger
from autoplace.placement.assignment import Assignment
from autoplace.predict.traffic import TrafficModel
from autoplace.rules.lint import refuse_unrunnable
from autoplace.rules.match import assign
from autoplace.rules.read import parse_rules
from autoplace.rules.read_back import read_back
from autoplace.weights.gguf_file import GGUFFile

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
REFERENCE_DTYPE = "float32"
"""Whatever the engine's dtype: its rounding is part of what quality says."""


@dataclass(frozen=True)
class Loadable:
    """A request, opened and checked: everything that loading needs."""

    request: TrialRequest
    gguf: GGUFFile
    spec: ModelSpec
    assignment: Assignment
    ledger: Ledger

    @classmethod
    def of(cls, request: TrialRequest) -> "Loadable":
        """Raise `AutoplaceError` for what cannot be read or cannot run."""
        gguf = GGUFFile.open(Path(request.model_path))
        spec = spec_from_gguf(gguf)
        rules = parse_rules(request.rules, source="the trial's rules").rules
        assignment = assign(rules, spec, engine=request.engine)
        refuse_unrunnable(assignment, spec, request.machine)
        return cls(request, gguf, spec, assignment, Ledger.of(request.machine))

    @contextmanager
    def loaded(self) -> Iterator[HybridModel]:
        request = self.request
        set_threads(request.settings.num_threads)
        note_baseline(request.machine)
        model = load_model(
            self.gguf,
            self.spec,
            self.assignment,
            machine=request.machine,
            ledger=self.ledger,
            settings=request.settings,
            workload=request.workload,
            dtype=request.dtype,
            cuda_graphs=request.cuda_graphs,
            interleave=request.interleave,
        )
        try:
            yield model
        finally:
            model.close()

    def decode_bytes(self) -> Mapping[str, float]:
        """By device, what one decoded token reads; empty where the rules mean no placement."""
        request = self.request
        try:
            placement = read_back(self.assignment, self.spec)
        except AutoplaceError:
            return {}
        traffic = TrafficModel(
            self.spec, request.workload, dtype_bytes=DTYPE_BYTES[request.dtype]
        ).of(placement, request.settings)
        return {name: device.decode_bytes for name, device in traffic.items()}


def run_trial(request: TrialRequest) -> Outcome:
    """Build, measure and tear down one placement. Every failure is an outcome with its reason."""
    in_use = gpus_in_use(request.machine)
    if in_use is not None:
        return Outcome(Status.CONTENDED, Basis.of(request.machine), in_use)
    ledger = None
    try:
        loadable = Loadable.of(request)
        ledger = loadable.ledger
        with torch.inference_mode():
            outcome = _measured(loadable, time.monotonic())
    except Exception as error:  # the boundary of a trial: whatever happened is its result
        outcome = failed(error, request.machine)
    environment = {**outcome.environment, **recorded_threads(), **recorded_state(request.machine)}
    left = not_freed(request.machine, ledger) if ledger is not None else ""
    if left:
        environment["not_freed"] = left
    return replace(outcome, environment=environment)


def prepare(request: TrialRequest) -> Outcome | None:
    """Make sure that the reference's logits are cached; an outcome if that fails."""
    if not request.measure.quality:
        return None
    try:
        gguf = GGUFFile.open(Path(request.model_path))
        set_threads(request.settings.num_threads)
        _reference(request, gguf, spec_from_gguf(gguf))
    except Exception as error:  # as in run_trial: whatever it is, it is the result
        return failed(error, request.machine)
    return None


def _measured(loadable: Loadable, start_s: float) -> Outcome:
    request, settings = loadable.request, loadable.request.measure
    prompt, output = workload_tokens(request.workload, loadable.spec.geometry.vocab, settings.seed)
    with loadable.loaded() as model:
        load_s, by_graphs = time.monotonic() - start_s, model.uses_graphs
        weights = model.mapped_weights()
        warm(weights)
        measurement = measure(
            model,
            prompt,
            output,
            settings,
            synchronise=lambda: synchronise(request.machine),
            deadline_s=start_s + MEASURE_SHARE * settings.time_limit_s,
        )
        resident = resident_share(weights)
        role_seconds = _role_seconds(loadable, model) if settings.by_role else {}
        quality = _quality(loadable, model) if settings.quality else None
        bytes_by_device = _declared(loadable.ledger)
    decode_bytes = loadable.decode_bytes()
    verdict = judge(
        measurement,
        settings=settings,
        machine=request.machine,
        decode_bytes=decode_bytes,
        resident=resident,
    )
    environment = {
        **measurement.environment(),
        "resident_share": round(resident, 4),
        "cuda_graphs": int(by_graphs),
    }
    basis = Basis.of(request.machine)
    if verdict is not None:
        return Outcome(verdict.status, basis, verdict.reason, environment=environment)
    metrics = Metrics(
        decode_tok_per_s=measurement.decode_tok_per_s,
        prefill_latency_s=measurement.prefill_latency_s,
        prefill_tok_per_s=len(prompt) / measurement.prefill_latency_s.median,
        bytes_by_device=bytes_by_device,
        quality=quality,
        load_s=load_s,
        bytes_per_token=round(sum(decode_bytes.values())),
        role_seconds=role_seconds,
    )
    return Outcome(Status.OK, basis, metrics=metrics, environment=environment)


def _role_seconds(loadable: Loadable, model: HybridModel) -> dict[str, float]:
    request = loadable.request
    vocab, seed = loadable.spec.geometry.vocab, request.measure.seed
    prompt, output = workload_tokens(request.workload, vocab, seed)
    return seconds_by_role(model, prompt, output, synchronise=lambda: synchronise(request.machine))


def _quality(loadable: Loadable, model: HybridModel) -> Quality:
    request = loadable.request
    reference = _reference(request, loadable.gguf, loadable.spec)
    model.reset()
    logits = model.logits(_quality_tokens(request, loadable.spec))
    check_logits(logits, what="comparison with the reference")
    return compare(logits, reference)


def _reference(request: TrialRequest, gguf: GGUFFile, spec: ModelSpec) -> torch.Tensor:
    """Logits [T, V] of the reference operators on the quality tokens, from the cache if there."""
    tokens = _quality_tokens(request, spec)
    path = reference_path(
        gguf, fingerprint=spec.fingerprint, num_tokens=len(tokens), seed=request.measure.seed
    )

    def compute() -> torch.Tensor:
        logits = reference_logits(gguf, spec, tokens, REFERENCE_DTYPE)
        check_logits(logits, what="reference")
        return logits

    return cached_logits(path, compute)


def _quality_tokens(request: TrialRequest, spec: ModelSpec) -> list[int]:
    """As many as were asked for and as the KV cache has room for."""
    num_tokens = min(request.measure.quality_tokens, request.workload.context_tokens)
    return quality_tokens(spec.geometry.vocab, num_tokens, request.measure.seed)


def _declared(ledger: Ledger) -> dict[str, DeviceBytes]:
    return {
        name: DeviceBytes(
            weights=ledger.taken(name, "weights"),
            kv_cache=ledger.taken(name, "kv_cache"),
            workspace=ledger.taken(name, "workspace"),
            peak=ledger.peak(name),
        )
        for name in ledger.devices
    }
