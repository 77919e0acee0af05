"""The stages in their order, their seconds, and doing one of them in this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from autoplace.kernels.bench.gpu import blocks, decode, multiply, twins
from autoplace.kernels.bench.gpu.report import Limits, Report
from autoplace.kernels.bench.gpu.synthetic import PLACEMENTS, model_path, write_model
from autoplace.kernels.bench.gpu.timing import measure_limits, wall


@dataclass(frozen=True)
class Job:
    """What one process does."""

    report: Report
    folder: Path
    model: str
    layers: int | None

    @property
    def limits_path(self) -> Path:
        return self.folder / "limits.json"

    @property
    def model_path(self) -> Path:
        return model_path(self.folder, self.model)


def do(job: Job, name: str) -> None:
    """Do a stage; whatever it raises is a failed row of it."""
    job.report.limits = Limits.load(job.limits_path)
    with torch.inference_mode():
        job.report.case(name, partial(WORK[name], job))


def _limits(job: Job) -> None:
    limits = measure_limits(job.report)
    limits.save(job.limits_path)
    reading, product = limits.bytes_per_s / 1e9, limits.flops / 1e12
    job.report.add("limit: reading memory", f"{reading:.0f} GB/s", good=True)
    job.report.add("limit: bfloat16 product", f"{product:.1f} TFLOP/s", good=True)


def _write(job: Job) -> None:
    quant = "f16" if job.report.interpret else None
    seconds = wall(lambda: write_model(job.model_path, job.model, layers=job.layers, quant=quant))
    size = job.model_path.stat().st_size / 1e9
    job.report.add(f"write {job.model}", f"{size:.2f} GB, {seconds:.0f} s", good=True)


def _decode(job: Job, title: str) -> None:
    decode.check_decode(job.report, job.model_path, title)


WORK: Mapping[str, Callable[[Job], None]] = {
    "write": _write,
    "limits": _limits,
    "dequantise": lambda job: blocks.check_dequantisation(job.report),
    "pack": lambda job: blocks.check_packing(job.report),
    "linears": lambda job: multiply.check_linears(job.report),
    "experts": lambda job: multiply.check_experts(job.report),
    "tiny models": lambda job: twins.check_tiny_models(job.report, job.folder),
    **{f"decode, {title}": partial(_decode, title=title) for title in PLACEMENTS},
}
