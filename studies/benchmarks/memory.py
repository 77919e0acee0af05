"""Memory predicted for published cases, beside what was reported.

    python studies/benchmarks/memory.py [--markdown]

Cases and sources: published_memory.csv beside this file. `gpu` is the peak of the fullest GPU,
loading included; `host` the routed experts and the embedding as KTransformers maps them; `fits`
the verdict in three zones. What a source leaves open (prompt, context) is in the file as assumed.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autoplace.architectures import read_preset, spec_from_geometry
from autoplace.architectures.family import FileLayout
from autoplace.architectures.geometry import Mla
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.export.llama_cpp import buffers_of, parse_args
from autoplace.export.llama_cpp.memory import plan_llama_cpp
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.expand import Expander
from autoplace.placement.memory import MemoryPlan, plan_memory
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.zones import worst_zone
from autoplace.units import GIB, MIB
from autoplace.workload import Workload

CASES = Path(__file__).with_name("published_memory.csv")
UNITS = {"GB": 10**9, "GiB": GIB, "MiB": MIB}


@dataclass(frozen=True)
class Compared:
    """One published case with our prediction of it."""

    case: Mapping[str, str]
    predicted: float | str
    """In the unit of the report; a zone where the report is a verdict."""

    @property
    def difference(self) -> str:
        """Of figures relative to the report; of verdicts whether they agree."""
        if isinstance(self.predicted, str):
            fitted = self.case["reported"] == "fits"
            agrees = (self.predicted != "does not fit") == fitted
            return "agrees" if agrees or self.predicted == "close" else "differs"
        return f"{self.predicted / float(self.case['reported']) - 1:+.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="as the table in docs/memory.md")
    markdown = parser.parse_args().markdown
    if markdown:
        print("| case | model, engine | what | reported | predicted | difference | source |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
    for one in compared():
        case = one.case
        shown = one.predicted if isinstance(one.predicted, str) else f"{one.predicted:,.2f}"
        cells = [
            case["id"],
            f"{case['model']}, {case['engine']}, {case['num_gpus']}x{case['gpu_gib']} GiB",
            case["quantity"],
            " ".join(case[key] for key in ("reported", "unit", "note") if case[key]),
            shown,
            one.difference,
            case["source"],
        ]
        print("| " + " | ".join(cells) + " |" if markdown else "  ".join(cells))


def compared() -> Iterator[Compared]:
    with CASES.open(newline="") as file:
        for case in csv.DictReader(file):
            yield Compared(case, predict(case))


def predict(case: Mapping[str, str]) -> float | str:
    spec, machine = spec_of(case), machine_of(case)
    plan = plan_of(case, spec, machine)
    quantity = case["quantity"]
    if quantity == "fits":
        return worst_zone(plan, machine).value
    gpus = [memory for name, memory in plan.by_device.items() if name != "cpu"]
    n_bytes = {
        "gpu": max(memory.peak for memory in gpus),
        "gpu weights": sum(memory.weights for memory in gpus),
        "kv": sum(memory.kv_cache for memory in gpus),
        "host": plan.by_device["cpu"].weights,
    }[quantity]
    return n_bytes / UNITS[case["unit"]]


def spec_of(case: Mapping[str, str]) -> ModelSpec:
    """llama.cpp's own files of MLA models hold kv_b as two tensors."""
    geometry = read_preset(case["model"]).geometry
    split = case["engine"] == "llama.cpp" and isinstance(geometry.attention, Mla)
    layout = FileLayout(split_kv_b=split)
    return spec_from_geometry(case["model"], geometry, quant=case["quant"], layout=layout)


def machine_of(case: Mapping[str, str]) -> Machine:
    memory = round(float(case["gpu_gib"]) * GIB)
    gpus = (
        Device(f"cuda:{i}", "GPU", memory, 0, 1e12, 1e14, (8, 6))
        for i in range(int(case["num_gpus"]))
    )
    return Machine("published", (Device("cpu", "host", 4096 * GIB, 0, 1e11, 1e12), *gpus))


def plan_of(case: Mapping[str, str], spec: ModelSpec, machine: Machine) -> MemoryPlan:
    prompt, context = int(case["prompt"]), int(case["context"])
    workload = Workload("published", prompt, context - prompt, context)
    if case["engine"] == "llama.cpp":
        words = f"{case['placement']} -ctk {case['kv_type']} -ctv {case['kv_type']}"
        args, buffers = parse_args(f"llama-server -np 1 {words}"), buffers_of(machine)
        return plan_llama_cpp(spec, args, buffers, context_tokens=context)
    assignment = Expander(spec).expand(placement_of(case, spec))
    return plan_memory(
        spec,
        assignment,
        workload=workload,
        settings=RunSettings(8, 512),
        numa_copies=int(case["numa_copies"]),
    )


def placement_of(case: Mapping[str, str], spec: ModelSpec) -> Placement:
    """Marlin linears, lm_head plain up to 0.2.1 and Marlin after; experts as the case says."""
    num_layers, num_gpus = spec.geometry.num_layers, int(case["num_gpus"])
    has_mlp = {m.layer for m in spec.modules if m.role in (Role.DENSE_LINEAR, Role.SHARED_LINEAR)}
    layers = []
    for index in range(num_layers):
        gpu = f"cuda:{index * num_gpus // num_layers}"
        experts = Choice("cpu", "KExpertsCPU")
        if case["placement"].startswith("KExpertsTorch"):
            gpu = f"cuda:{0 if index < 4 else 1 + (index - 4) // 8}"
            experts = Choice(gpu, "KExpertsTorch")
        linear = Choice(gpu, "KLinearMarlin", 4)
        layers.append(
            LayerPlacement(
                gpu,
                linear,
                linear if index in has_mlp else None,
                experts if index in spec.moe_layers else None,
            )
        )
    last = layers[-1].device
    plain = case["engine"] == "ktransformers-0.2.1"
    head = Choice(last, "KLinearTorch") if plain else Choice(last, "KLinearMarlin", 4)
    return Placement(case["engine"], tuple(layers), head)


if __name__ == "__main__":
    main()
