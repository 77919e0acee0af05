"""Tiny models of every family, written once a test session, and ways to place them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from autoplace.architectures.presets import read_preset
from autoplace.architectures.registry import file_metadata, file_tensors, spec_from_gguf
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.engine.loader import load_model
from autoplace.engine.model import HybridModel
from autoplace.hardware.ledger import Ledger
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.assignment import Assignment, ModuleAssignment, Value
from autoplace.placement.settings import RunSettings
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf
from autoplace.workload import Workload

FAMILIES = (
    "tiny",
    "tiny-lite",
    "tiny-v3",
    "tiny-llama",
    "tiny-mixtral",
    "tiny-qwen2moe",
    "tiny-qwen3moe",
)
CONTEXT = 96
GIB = 1 << 30
EMULATED = Machine(
    "emulated",
    tuple(
        Device(name, "emulated", GIB, 0, 1e9, 1e9, compute_capability)
        for name, compute_capability in (("cpu", None), ("cuda:0", (8, 0)), ("cuda:1", (8, 0)))
    ),
    emulated=True,
)
REPLACEABLE = (
    Role.ATTENTION_LINEAR,
    Role.DENSE_LINEAR,
    Role.SHARED_LINEAR,
    Role.LM_HEAD,
)


def write_tiny(folder: Path, preset: str, quant: str) -> tuple[GGUFFile, ModelSpec]:
    """A file of a preset's geometry with random weights, and its spec."""
    geometry = read_preset(preset).geometry
    path = folder / f"{preset}-{quant}.gguf"
    if not path.exists():
        write_gguf(
            path,
            metadata=file_metadata(preset, geometry, quant),
            tensors=file_tensors(geometry, quant=quant),
            seed=0,
        )
    gguf = GGUFFile.open(path)
    return gguf, spec_from_gguf(gguf)


def placed(
    spec: ModelSpec,
    *,
    linear: str | None = None,
    experts: str = "KExpertsTorch",
    linear_device: str | None = None,
    experts_device: str = "cpu",
    layer_devices: tuple[str, ...] = ("cpu",),
    kwargs: Mapping[str, Value] | None = None,
) -> Assignment:
    """Layers dealt evenly over devices; linears and experts by these operators.

    Linears without an operator stay plain; `linear_device` None is the layer's own device.
    """
    num_layers = spec.geometry.num_layers
    homes = [layer_devices[i * len(layer_devices) // num_layers] for i in range(num_layers)]
    modules = {}
    for module in spec.modules:
        home = homes[-1 if module.layer is None else module.layer]
        operator, device = None, "cpu" if module.role is Role.EMBEDDING else home
        if module.role is Role.EXPERTS:
            operator, device = experts, experts_device
        elif module.role in REPLACEABLE and linear is not None:
            operator, device = linear, linear_device or home
        modules[module.path] = ModuleAssignment(
            module.path, device, operator=operator, kwargs=dict(kwargs or {}) if operator else {}
        )
    starts: dict[Value, Value] = {
        i: homes[i] for i in range(1, num_layers) if homes[i] != homes[i - 1]
    }
    modules["model"] = replace(modules["model"], kwargs={"transfer_map": starts})
    return Assignment("builtin", modules)


def load_tiny(
    gguf: GGUFFile,
    spec: ModelSpec,
    assignment: Assignment,
    *,
    ledger: Ledger | None = None,
    prefill_chunk: int = 64,
    kv_type: str = "f32",
    dtype: str = "float32",
    cuda_graphs: str = "auto",
) -> HybridModel:
    """The model on the emulated machine with a small context."""
    return load_model(
        gguf,
        spec,
        assignment,
        machine=EMULATED,
        ledger=ledger or Ledger.of(EMULATED),
        settings=RunSettings(1, prefill_chunk, kv_type),
        workload=Workload("test", 64, 16, CONTEXT),
        dtype=dtype,
        cuda_graphs=cuda_graphs,
    )


def some_tokens(spec: ModelSpec, n: int) -> list[int]:
    """Tokens that do not repeat in a simple pattern, within the vocabulary."""
    generator = torch.Generator().manual_seed(7)
    tokens: list[int] = torch.randint(3, spec.geometry.vocab, (n,), generator=generator).tolist()
    return tokens
