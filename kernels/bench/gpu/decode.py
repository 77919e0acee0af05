"""Stages `decode …`: a synthetic model decodes with and without graphs; bytes against the driver's.

By the interpreter the plain twins run, and a stand-in on host memory records the pieces
(tests/engine/host_capture.py): it shows no speed and no driver's bytes.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from autoplace.engine.model import HybridModel
from autoplace.engine.recorder import Capture
from autoplace.hardware.ledger import Ledger
from autoplace.kernels.bench.gpu.report import Report
from autoplace.kernels.bench.gpu.synthetic import (
    PLACEMENTS,
    Subject,
    machine_of,
    open_model,
    placed,
)
from autoplace.kernels.bench.gpu.timing import relative_error, wall
from autoplace.models.backend import slow_twin
from autoplace.models.place import Place
from autoplace.placement.memory import plan_memory
from autoplace.placement.workspace import graph_bytes

ALLOWANCE_SHARE, ALLOWANCE_BYTES = 0.03, 300 << 20
GRAPHS_BOUND = 0.02
"""Median relative error of a token's logits. The only difference is the mask over empty rows of
the cache; a token whose routing flips at a near tie is far off, the median one is not."""


@dataclass(frozen=True)
class Decoded:
    logits: Tensor
    """[T, V]"""
    prefill_s: float
    token_s: float
    """Median, without the first quarter, when graphs are recorded and kernels compiled."""

    @property
    def told(self) -> str:
        return f"prefill {self.prefill_s:.2f} s, decode {1 / self.token_s:.1f} tok/s"


def check_decode(report: Report, path: Path, title: str) -> None:
    with slow_twin() if report.interpret else contextlib.nullcontext():
        report.case(title, lambda: _decode(report, path, title))


def _decode(report: Report, path: Path, title: str) -> None:
    subject, machine = open_model(path, tiny=report.interpret), machine_of(report)
    experts, device = PLACEMENTS[title]
    assignment = placed(subject.spec, experts, device)
    plan = plan_memory(
        subject.spec, assignment, workload=subject.workload, settings=subject.settings
    )
    plan.check(machine)
    ledger, before = Ledger.of(machine), _bytes_in_use(report)
    start = time.perf_counter()
    model = subject.load(assignment, machine, ledger, dtype="bfloat16", graphs="off")
    report.add(f"{title}: load", f"{time.perf_counter() - start:.1f} s", good=True)
    try:
        eager = _decoded(model, subject)
        finite = bool(eager.logits.isfinite().all())
        report.add(f"{title}: without graphs", eager.told, finite)
        standing = _bytes_in_use(report)
        if not report.interpret or experts == "KExpertsCPU":  # the stand-in cannot hold experts
            _check_graphs(report, model, subject, title, eager)
        _check_bytes(report, title, plan.by_device["cuda:0"].peak, ledger, before)
        room = graph_bytes(subject.spec.geometry, context_tokens=subject.workload.context_tokens)
        more = _bytes_in_use(report) - standing
        told = f"declared {room / 1e6:.1f} MB, driver {more / 1e6:.1f} MB more"
        report.add(f"{title}: bytes of graphs", told, good=True)
    finally:
        model.close()


def _check_graphs(
    report: Report, model: HybridModel, subject: Subject, title: str, eager: Decoded
) -> None:
    model.use_graphs(_stand_in() if report.interpret else None)
    start = time.perf_counter()
    _decoded(model, subject, num_tokens=1)
    report.add(f"{title}: record all", f"{time.perf_counter() - start:.2f} s", good=True)
    graphed = _decoded(model, subject)
    pairs = zip(graphed.logits, eager.logits, strict=True)
    errors = [relative_error(got, expected) for got, expected in pairs]
    top = (graphed.logits.argmax(-1) == eager.logits.argmax(-1)).float().mean().item()
    told = f"{graphed.told}, {eager.token_s / graphed.token_s:.2f}× without"
    told = f"{told}; median error {median(errors):.1e}, most {max(errors):.1e}"
    told = f"{told}, same top {100 * top:.0f} %"
    report.add(f"{title}: with graphs", told, median(errors) < GRAPHS_BOUND)


def _stand_in() -> Callable[[Place], Capture]:
    from tests.engine.host_capture import HostCapture

    return HostCapture


def _decoded(model: HybridModel, subject: Subject, num_tokens: int | None = None) -> Decoded:
    model.reset()
    workload, vocab = subject.workload, subject.spec.geometry.vocab
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, vocab, (workload.prompt_tokens,), generator=generator).tolist()
    output = torch.randint(3, vocab, (workload.output_tokens,), generator=generator).tolist()
    prefill_s = wall(lambda: model.prefill(prompt))
    logits, seconds = [], []
    for token in output[:num_tokens]:
        start = time.perf_counter()
        logits.append(model.decode(token))
        seconds.append(time.perf_counter() - start)
    return Decoded(torch.stack(logits), prefill_s, median(seconds[len(seconds) // 4 :]))


def _bytes_in_use(report: Report) -> int:
    """Of the GPU by everyone, as the driver has it, once torch holds no more than it needs."""
    if report.interpret:
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(0)
    return total - free


def _check_bytes(report: Report, title: str, predicted: int, ledger: Ledger, before: int) -> None:
    declared = ledger.peak("cuda:0")
    told = f"predicted {predicted / 1e6:.1f} MB, declared {declared / 1e6:.1f} MB"
    report.add(f"{title}: bytes of the ledger", told, predicted == declared)
    if report.interpret:
        return
    driver = _bytes_in_use(report) - before
    peak = torch.cuda.max_memory_allocated(0)
    allowed = predicted + max(int(ALLOWANCE_SHARE * predicted), ALLOWANCE_BYTES)
    told = f"driver {driver / 1e6:.1f} MB more, torch's peak {peak / 1e6:.1f} MB"
    told = f"{told}, allowed {allowed / 1e6:.1f} MB"
    report.add(f"{title}: bytes of the driver", told, max(driver, peak) <= allowed)
