"""How far predictions are off on published runs: by rig, engine and quant family, and over all.

    python studies/benchmarks/published.py [--rows]

Rows and sources: autoplace/predict/data/published_runs.csv; what was left out and why:
excluded_runs.csv beside it. A row becomes a placement of the preset of its model, costed by the
time model with the engine's profile; bytes of a quant that no preset has are scaled to the size
that the source states. `as it is`: no row was used. `leave one out`: each row by factors that are
fitted to the others.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

import autoplace.predict
from autoplace.architectures import geometry_from_preset, spec_from_geometry
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.config.groups import CONF
from autoplace.hardware.links import pcie_links
from autoplace.hardware.machine import Device, Machine
from autoplace.hardware.parts import gpu_part, host_part
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.predict.calibrate import fit
from autoplace.predict.latency import LatencyModel
from autoplace.units import GIB, MIB
from autoplace.workload import Workload

DATA = Path(autoplace.predict.__file__).parent / "data"
OUTPUT_TOKENS = 128
LEAST_ROWS = 3
QUANT = "q4_k_m"
"""Of the presets; other sizes are scaled from it."""
BLOCKS = "KLinearCPUInfer"
"""GGUF blocks, which llama.cpp has on every device."""


@dataclass(frozen=True)
class Row:
    """One published run, with what its prediction is made of."""

    id: str
    engine: str
    group: tuple[str, str, str]
    decode_tok_per_s: float
    prefill_s: float | None
    decode_costs: Mapping[str, float]
    prefill_costs: Mapping[str, float]

    @property
    def decode_s(self) -> float:
        return 1 / self.decode_tok_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", action="store_true", help="show every row's prediction")
    arguments = parser.parse_args()
    rows = read_rows()
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    engines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
        engines[row.engine].append(row)
    print(f"{len(rows)} rows. Decode rate, mean absolute relative error (worst)")
    print(f"{'rig, engine, quant':52s}  n  as it is         leave one out    prefill, the same")
    for group, members in sorted(groups.items()):
        if len(members) >= LEAST_ROWS:
            print_line(", ".join(group), members)
    for engine, members in sorted(engines.items()):
        print_line(f"all rows of {engine}, one calibration", members)
    print_line("all rows, each engine its own calibration", rows, by=[*engines.values()])
    small = sum(len(members) for members in groups.values() if len(members) < LEAST_ROWS)
    print(f"{small} rows are in groups of fewer than {LEAST_ROWS}: in the lines of all rows only")
    if arguments.rows:
        print_rows(rows)
    print_excluded()


def print_line(name: str, rows: Sequence[Row], by: Sequence[Sequence[Row]] | None = None) -> None:
    plain = [sum(row.decode_costs.values()) for row in rows]
    seen = [row.decode_s for row in rows]
    corrected = [s for part in by or [rows] for s in left_out(part)]
    seen_by = [row.decode_s for part in by or [rows] for row in part]
    prompts = [row for row in rows if row.prefill_s is not None]
    prefill = "-"
    if len(prompts) >= LEAST_ROWS:
        prefill = _errors(left_out_prefill(prompts), [row.prefill_s or 0.0 for row in prompts])
    print(
        f"{name:52s} {len(rows):2d}  {_errors(plain, seen):16s} "
        f"{_errors(corrected, seen_by):16s} {prefill} (n {len(prompts)})"
    )


def left_out(rows: Sequence[Row]) -> list[float]:
    """Seconds a token of each row, by the factors of the others."""
    found = []
    for i, row in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i]
        fitted = fit([other.decode_costs for other in others], [o.decode_s for o in others])
        factors = fitted.factors
        found.append(sum(s * factors.get(key, 1.0) for key, s in row.decode_costs.items()))
    return found


def left_out_prefill(rows: Sequence[Row]) -> list[float]:
    found = []
    for i, row in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i]
        seconds = [other.prefill_s or 0.0 for other in others]
        factors = fit([other.prefill_costs for other in others], seconds).factors
        found.append(sum(s * factors.get(key, 1.0) for key, s in row.prefill_costs.items()))
    return found


def _errors(predicted_s: Sequence[float], seen_s: Sequence[float]) -> str:
    """Of rates: seen seconds over predicted seconds, minus one."""
    errors = np.abs(np.array(seen_s) / np.array(predicted_s) - 1)
    return f"{errors.mean():6.1%} ({errors.max():.0%})"


def print_rows(rows: Sequence[Row]) -> None:
    for row in rows:
        rate = 1 / sum(row.decode_costs.values())
        print(f"{row.id:4s} {row.decode_tok_per_s:7.2f} tok/s, predicted {rate:7.2f}  {row.group}")


def print_excluded() -> None:
    print("left out:")
    with (DATA / "excluded_runs.csv").open(newline="") as file:
        for entry in csv.DictReader(file):
            print(f"  {entry['ids']}: {entry['reason']}")


# From a row of the file to costs.


def read_rows() -> list[Row]:
    with (DATA / "published_runs.csv").open(newline="") as file:
        return [row_of(entry) for entry in csv.DictReader(file)]


def row_of(entry: Mapping[str, str]) -> Row:
    spec = spec_of(entry["model"], int(entry["top_k"]))
    machine = machine_of(entry)
    placement = placement_of(entry, spec, machine)
    depth = int(entry["depth"])
    decode = model_of(entry, spec, machine, depth).by_key(placement, settings(machine, depth))[0]
    prompt = int(entry["prompt"] or 0)
    prefill_s: float | None = None
    prefill: dict[str, float] = {}
    if prompt and entry["prefill_tok_per_s"]:
        chunk = int(entry["chunk"])
        model = model_of(entry, spec, machine, prompt)
        prefill = dict(model.by_key(placement, settings(machine, chunk))[1])
        prefill_s = prompt / float(entry["prefill_tok_per_s"])
    return Row(
        id=entry["id"],
        engine=entry["engine"].split()[0],
        group=(entry["rig"], entry["engine"].split()[0], entry["quant_family"]),
        decode_tok_per_s=float(entry["decode_tok_per_s"]),
        prefill_s=prefill_s,
        decode_costs=scaled(decode, entry, spec),
        prefill_costs=prefill,
    )


def spec_of(model: str, top_k: int) -> ModelSpec:
    preset = yaml.safe_load((CONF / "model" / f"{model}.yaml").read_text())
    geometry = geometry_from_preset(preset)
    assert geometry.moe is not None
    geometry = replace(geometry, moe=replace(geometry.moe, top_k=top_k))
    quant = "mxfp4" if preset["default_quant"] == "mxfp4" else QUANT
    return spec_from_geometry(model, geometry, quant=quant)


def machine_of(entry: Mapping[str, str]) -> Machine:
    host = host_part(entry["host"])
    bandwidth = host.bandwidth_bytes_per_s
    if entry["host_gb_per_s"]:
        bandwidth = float(entry["host_gb_per_s"]) * 1e9
    cores = int(entry["host_cores"])
    flops = host.flops * cores / host.num_cores
    devices = [Device("cpu", host.model, 2048 * GIB, 0, bandwidth, flops)]
    parts = [gpu_part(entry["gpu"])] * int(entry["num_gpus"]) if entry["gpu"] else []
    for i, part in enumerate(parts):
        devices.append(
            Device(
                f"cuda:{i}",
                part.model,
                part.memory_bytes,
                0,
                part.bandwidth_bytes_per_s,
                part.flops,
                part.compute_capability,
            )
        )
    links = pcie_links(host.pcie_gen, [part.pcie_gen for part in parts])
    return Machine(entry["rig"], tuple(devices), links, num_cores=cores)


def placement_of(entry: Mapping[str, str], spec: ModelSpec, machine: Machine) -> Placement:
    """Everything on the GPU but the experts that are not said to be there."""
    home = machine.gpus[0].name if machine.gpus else "cpu"
    is_kt = entry["profile"].startswith("ktransformers")
    linear = Choice(home, "KLinearMarlin", 4) if is_kt else Choice(home, BLOCKS)
    on_gpu = spec.moe_layers[: int(entry["gpu_expert_layers"])]
    has_mlp = {
        module.layer
        for role in (Role.DENSE_LINEAR, Role.SHARED_LINEAR)
        for module in spec.of_role(role)
    }
    layers = []
    for layer in range(spec.geometry.num_layers):
        experts = None
        if layer in spec.moe_layers:
            experts = Choice(home if layer in on_gpu else "cpu", "KExpertsCPU")
        layers.append(LayerPlacement(home, linear, linear if layer in has_mlp else None, experts))
    return Placement(entry["profile"], tuple(layers), linear)


def model_of(
    entry: Mapping[str, str], spec: ModelSpec, machine: Machine, prompt: int
) -> LatencyModel:
    workload = Workload("published", prompt, OUTPUT_TOKENS, prompt + OUTPUT_TOKENS)
    return LatencyModel(spec, machine, workload, engine=entry["profile"])


def settings(machine: Machine, chunk: int) -> RunSettings:
    return RunSettings(machine.num_cores, chunk)


def scaled(
    costs: Mapping[str, float], entry: Mapping[str, str], spec: ModelSpec
) -> dict[str, float]:
    """Bytes of the preset's quant → of the published file: experts, and what is beside them."""
    expert_bytes = sum(spec.n_bytes(module) for module in spec.of_role(Role.EXPERTS))
    all_bytes = sum(info.n_bytes for info in spec.tensors.values())
    dense_bytes = all_bytes - expert_bytes
    stated = float(entry["gpu_weights_mib"] or 0) * MIB
    published_dense = stated or dense_bytes
    published_experts = float(entry["size_gib"]) * GIB - published_dense
    ratios = {
        "experts": published_experts / expert_bytes,
        "dense": published_dense / dense_bytes,
        "head": published_dense / dense_bytes,
    }
    if entry["profile"].startswith("ktransformers"):
        ratios = {}
    return {
        key: seconds * (ratios.get(key.split()[0], 1.0) if "blocks" in key else 1.0)
        for key, seconds in costs.items()
    }


if __name__ == "__main__":
    main()
