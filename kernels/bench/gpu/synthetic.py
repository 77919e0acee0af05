"""A synthetic model on disk, where its modules are put, and loading it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autoplace.architectures.presets import read_preset
from autoplace.architectures.registry import file_metadata, file_tensors, spec_from_gguf
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.engine.loader import load_model
from autoplace.engine.model import HybridModel
from autoplace.hardware.ledger import Ledger
from autoplace.hardware.machine import Device, Machine
from autoplace.kernels.bench.gpu.report import Report
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.placement.settings import RunSettings
from autoplace.units import GIB
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf
from autoplace.workload import Workload

LINEARS = (Role.ATTENTION_LINEAR, Role.DENSE_LINEAR, Role.SHARED_LINEAR, Role.LM_HEAD)
PLACEMENTS = {
    "experts on the CPU": ("KExpertsCPU", "cpu"),
    "experts packed": ("KExpertsMarlin", "cuda:0"),
    "experts bf16": ("KExpertsTorch", "cuda:0"),
}


@dataclass(frozen=True)
class Subject:
    """A model's file and what it is loaded for."""

    gguf: GGUFFile
    spec: ModelSpec
    workload: Workload
    settings: RunSettings

    def load(
        self, assignment: Assignment, machine: Machine, ledger: Ledger, *, dtype: str, graphs: str
    ) -> HybridModel:
        return load_model(
            self.gguf,
            self.spec,
            assignment,
            machine=machine,
            ledger=ledger,
            settings=self.settings,
            workload=self.workload,
            dtype=dtype,
            cuda_graphs=graphs,
        )


def model_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.gguf"


def write_model(path: Path, name: str, *, layers: int | None, quant: str | None = None) -> None:
    """A preset with random weights, by its own types or all by one."""
    preset = read_preset(name)
    geometry = preset.geometry if layers is None else replace(preset.geometry, num_layers=layers)
    quant = quant or preset.default_quant
    metadata = file_metadata(name, geometry, quant)
    write_gguf(path, metadata=metadata, tensors=file_tensors(geometry, quant=quant), seed=0)


def open_model(path: Path, *, tiny: bool) -> Subject:
    gguf = GGUFFile.open(path)
    lengths = (20, 12, 64) if tiny else (128, 48, 1024)
    settings = RunSettings(min(16, os.cpu_count() or 1), 8 if tiny else 128, "bf16")
    return Subject(gguf, spec_from_gguf(gguf), Workload("gpu-check", *lengths), settings)


def machine_of(report: Report) -> Machine:
    """This GPU and an unlimited host; an emulated GPU where there is none."""
    host = Device("cpu", "host", 1 << 40, 0, 1e11, 1e12)
    if report.interpret:
        gpu = Device("cuda:0", "emulated", 4 * GIB, 0, 1e11, 1e12, (8, 0))
        return Machine("gpu-check", (host, gpu), emulated=True)
    found = torch.cuda.get_device_properties(0)
    capability = (found.major, found.minor)
    gpu = Device("cuda:0", found.name, found.total_memory, GIB, 1e12, 1e14, capability)
    return Machine("gpu-check", (host, gpu))


def placed(spec: ModelSpec, experts: str, device: str) -> Assignment:
    """Layers on the GPU, linears packed, the embedding on the CPU, experts as told."""
    modules = {}
    for module in spec.modules:
        where, operator = "cuda:0", None
        if module.role is Role.EMBEDDING:
            where = "cpu"
        elif module.role is Role.EXPERTS:
            where, operator = device, experts
        elif module.role in LINEARS:
            operator = "KLinearMarlin"
        modules[module.path] = ModuleAssignment(module.path, where, operator=operator)
    return Assignment("builtin", modules)
