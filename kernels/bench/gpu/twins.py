"""Stage `tiny models`: every logit by Triton and graphs against the plain twins, in float32."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from autoplace.hardware.ledger import Ledger
from autoplace.hardware.machine import Machine
from autoplace.kernels.bench.gpu.report import Report
from autoplace.kernels.bench.gpu.synthetic import (
    PLACEMENTS,
    Subject,
    machine_of,
    model_path,
    open_model,
    placed,
    write_model,
)
from autoplace.kernels.bench.gpu.timing import relative_error
from autoplace.models.backend import slow_twin
from autoplace.operators import experts_marlin, experts_torch, gpu_kernels, linear_marlin
from autoplace.placement.assignment import Assignment

NUM_DECODED = 3


def check_tiny_models(report: Report, folder: Path) -> None:
    """One placement of one family by the interpreter; the CPU's experts have no Triton in them."""
    names = ("tiny-qwen3moe",) if report.interpret else ("tiny-lite", "tiny-v3", "tiny-qwen3moe")
    for name in names:
        path = model_path(folder, name)
        write_model(path, name, layers=None, quant="f16")
        subject = open_model(path, tiny=True)
        subject = replace(subject, settings=replace(subject.settings, kv_type="f32"))
        for title in PLACEMENTS:
            if not report.interpret or title != "experts on the CPU":
                what = f"{name} in float32, {title}"
                report.case(what, partial(_compare, report, what, subject, title))


def _compare(report: Report, what: str, subject: Subject, title: str) -> None:
    assignment = placed(subject.spec, *PLACEMENTS[title])
    tokens = list(range(3, 9 if report.interpret else 40))
    with _triton_alone() if report.interpret else contextlib.nullcontext():
        got, graphs = _logits(subject, assignment, machine_of(report), tokens)
    with slow_twin():
        emulated = machine_of(replace(report, interpret=True))
        expected, _ = _logits(subject, assignment, emulated, tokens)
    error = relative_error(got, expected)
    told = f"error {error:.1e}, {'with' if graphs else 'without'} graphs"
    report.add(what, told, error < 1e-3 and graphs is not report.interpret)


def _logits(
    subject: Subject, assignment: Assignment, machine: Machine, tokens: list[int]
) -> tuple[Tensor, bool]:
    """Of all tokens, the last by decoding as is the default; whether that was by graphs."""
    ledger = Ledger.of(machine)
    model = subject.load(assignment, machine, ledger, dtype="float32", graphs="auto")
    try:
        prompt, rest = tokens[:-NUM_DECODED], tokens[-NUM_DECODED:]
        rows = [model.logits(prompt), *(model.decode(token)[None] for token in rest)]
        return torch.cat(rows), model.uses_graphs
    finally:
        model.close()


@contextlib.contextmanager
def _triton_alone() -> Iterator[None]:
    """Operators of an emulated GPU call the interpreted kernels, as those of a real one do.

    All else runs by plain torch: the CPU's kernels have tests of their own.
    """
    given = (
        (linear_marlin, "linear_from_marlin"),
        (experts_marlin, "experts_from_marlin"),
        (experts_torch, "experts_from_dense"),
    )
    before = [getattr(module, name) for module, name in given]
    for module, name in given:
        setattr(module, name, getattr(gpu_kernels, name))
    try:
        with slow_twin():
            yield
    finally:
        for (module, name), function in zip(given, before, strict=True):
            setattr(module, name, function)
