"""The plan against the ledger of a model that the engine really loaded: the same bytes."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoplace.architectures import file_metadata, file_tensors, read_preset, spec_from_gguf
from autoplace.architectures.family import FileLayout
from autoplace.architectures.spec import ModelSpec
from autoplace.engine.loader import load_model
from autoplace.errors import DeviceOutOfMemoryError
from autoplace.hardware.ledger import Ledger
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.assignment import Assignment
from autoplace.placement.memory import plan_memory
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.rules.compile import compile_rules
from autoplace.rules.match import assign
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf
from autoplace.workload import Workload

WORKLOAD = Workload("short", 24, 8, 48)
DEVICES = ("cpu", "cuda:0", "cuda:1")
MACHINE = Machine(
    "emulated",
    tuple(Device(name, "test", 2**40, 0, 1e9, 1e12) for name in DEVICES),
    emulated=True,
)
LINEARS = (
    lambda device: Choice(device, "KLinearMarlin", 4),
    lambda device: Choice(device, "KLinearTorch"),
    lambda device: Choice(device, "KLinearMarlin", 8),
    lambda device: Choice("cpu", "KLinearCPUInfer"),
)
EXPERTS = (
    lambda device: Choice(device, "KExpertsMarlin", 4),
    lambda device: Choice("cpu", "KExpertsCPU"),
    lambda device: Choice(device, "KExpertsTorch"),
    lambda device: Choice("cuda:0", "KExpertsMarlin", 8),
)
PRESETS = ("tiny", "tiny-v3", "tiny-lite", "tiny-llama", "tiny-mixtral", "tiny-qwen2moe")
LAYOUTS = {
    "whole": FileLayout(),
    "split kv_b": FileLayout(split_kv_b=True),
    "old experts": FileLayout(stacked_experts=False),
}


def mixed_assignment(spec: ModelSpec, *, gpus: bool) -> Assignment:
    """Every operator somewhere, layers over both GPUs; or all of it on the host."""
    num_layers = spec.geometry.num_layers
    dense = spec.geometry.moe is None
    has_mlp = dense or (spec.geometry.moe is not None and spec.geometry.moe.shared_ffn > 0)
    layers = []
    for layer in range(num_layers):
        device = f"cuda:{int(layer >= num_layers // 2)}" if gpus else "cpu"
        kinds = (LINEARS[layer % 4], EXPERTS[layer % 4]) if gpus else (LINEARS[1], EXPERTS[2])
        is_moe = layer in spec.moe_layers
        layers.append(
            LayerPlacement(
                device=device,
                attention=kinds[0](device),
                mlp=kinds[0](device) if has_mlp or not is_moe else None,
                experts=kinds[1](device) if is_moe else None,
            )
        )
    placement = Placement("builtin", tuple(layers), kinds[0](layers[-1].device))
    return assign(compile_rules(placement, spec), spec, engine="builtin")


def written(path: Path, preset: str, layout: FileLayout) -> GGUFFile:
    """A preset with random weights, opened."""
    known = read_preset(preset)
    write_gguf(
        path,
        metadata=file_metadata(known.name, known.geometry, known.default_quant, layout=layout),
        tensors=file_tensors(known.geometry, quant=known.default_quant, layout=layout),
        seed=1,
    )
    return GGUFFile.open(path)


def check_against_ledger(
    path: Path, preset: str, *, layout: FileLayout, dtype: str, kv_type: str, gpus: bool
) -> None:
    gguf = written(path, preset, layout)
    spec = spec_from_gguf(gguf)
    settings = RunSettings(num_threads=1, prefill_chunk=16, kv_type=kv_type)
    assignment = mixed_assignment(spec, gpus=gpus)
    ledger = Ledger.of(MACHINE)
    loaded = load_model(
        gguf,
        spec,
        assignment,
        machine=MACHINE,
        ledger=ledger,
        settings=settings,
        workload=WORKLOAD,
        dtype=dtype,
    )
    planned = plan_memory(
        spec,
        assignment,
        workload=WORKLOAD,
        settings=settings,
        dtype_bytes=2 if dtype == "bfloat16" else 4,
    ).by_device
    assert set(planned) == set(ledger.devices)
    for device in ledger.devices:
        declared = tuple(
            ledger.taken(device, kind) for kind in ("weights", "kv_cache", "workspace")
        )
        memory = planned[device]
        assert (memory.weights, memory.kv_cache, memory.workspace) == declared, device
        assert memory.peak == ledger.peak(device), device
    loaded.close()


@pytest.mark.parametrize("preset", PRESETS)
def test_the_plan_is_what_the_engine_declares(tmp_path: Path, preset: str) -> None:
    check_against_ledger(
        tmp_path / "m.gguf",
        preset,
        layout=LAYOUTS["whole"],
        dtype="bfloat16",
        kv_type="f16",
        gpus=True,
    )


@pytest.mark.parametrize(
    ("preset", "layout"), [("tiny", "split kv_b"), ("tiny-mixtral", "old experts")]
)
@pytest.mark.parametrize("gpus", [True, False])
def test_it_is_so_for_other_layouts_dtypes_and_on_the_host(
    tmp_path: Path, preset: str, layout: str, gpus: bool
) -> None:
    check_against_ledger(
        tmp_path / "m.gguf",
        preset,
        layout=LAYOUTS[layout],
        dtype="float32",
        kv_type="q8_0",
        gpus=gpus,
    )


def test_a_budget_of_the_planned_peak_is_enough_and_one_byte_less_is_not(tmp_path: Path) -> None:
    gguf = written(tmp_path / "m.gguf", "tiny", LAYOUTS["whole"])
    spec = spec_from_gguf(gguf)
    settings = RunSettings(num_threads=1, prefill_chunk=16)
    assignment = mixed_assignment(spec, gpus=True)
    planned = plan_memory(spec, assignment, workload=WORKLOAD, settings=settings).by_device
    exact = Machine(
        "exact",
        tuple(replace(d, memory_bytes=planned[d.name].peak) for d in MACHINE.devices),
        emulated=True,
    )
    short = replace(
        exact,
        devices=tuple(
            replace(d, memory_bytes=d.memory_bytes - (d.name == "cuda:1")) for d in exact.devices
        ),
    )

    def load(machine: Machine) -> None:
        load_model(
            gguf,
            spec,
            assignment,
            machine=machine,
            ledger=Ledger.of(machine),
            settings=settings,
            workload=WORKLOAD,
        ).close()

    load(exact)
    with pytest.raises(DeviceOutOfMemoryError) as caught:
        load(short)
    assert caught.value.device == "cuda:1"
