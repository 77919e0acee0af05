"""All placements of a small space, with what the model says of each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
import yaml
from numpy.typing import NDArray

from autoplace.architectures import geometry_from_preset, spec_from_geometry
from autoplace.config.groups import CONF, profile
from autoplace.hardware.profile import machine_from_profile
from autoplace.placement.expand import Expander
from autoplace.placement.memory import plan_memory
from autoplace.placement.space import SearchSpace, Value
from autoplace.predict.latency import LatencyModel
from autoplace.units import GIB
from autoplace.workload import Workload

WORKLOAD = Workload("chat", 128, 32, 160)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """All vectors of a space with what the model says of them. N vectors, K kinds of cost."""

    axes: Mapping[str, tuple[Value, ...]]
    decode: Floats
    """[N, K] seconds of a token."""
    prefill: Floats
    """[N, K]"""
    over_bytes: Floats
    """[N, devices]: predicted peak minus budget."""
    peak_bytes: Floats
    """[N, devices]"""

    @property
    def size(self) -> int:
        return len(self.decode)

    def index(self, values: Mapping[str, Value]) -> int:
        found = 0
        for name, axis in self.axes.items():
            found = found * len(axis) + axis.index(values[name])
        return found

    @cached_property
    def one_hot(self) -> Floats:
        """[N, values of all axes]"""
        columns = []
        at = np.arange(self.size)
        for axis in list(self.axes.values())[::-1]:
            at, here = np.divmod(at, len(axis))
            columns.append(np.eye(len(axis))[here])
        return np.concatenate(columns, axis=1)

    def values(self, index: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for name, axis in list(self.axes.items())[::-1]:
            index, at = divmod(index, len(axis))
            values[name] = axis[at]
        return values


def make_grid() -> Grid:
    preset = yaml.safe_load((CONF / "model" / "deepseek-v2.yaml").read_text())
    spec = spec_from_geometry("deepseek-v2", geometry_from_preset(preset), quant="q4_k_m")
    machine = machine_from_profile(profile("2xa6000"))
    machine = replace(
        machine, devices=(replace(machine.host, memory_bytes=112 * GIB), *machine.gpus)
    )
    space = SearchSpace(spec, machine, WORKLOAD, "builtin")
    ops = ("KExpertsMarlin 4", "KExpertsMarlin 8", "KExpertsTorch")
    axes: dict[str, tuple[Value, ...]] = {
        "cuda:0.end_layer": tuple(range(2, 60, 4)),
        "cuda:0.num_experts": tuple(range(0, 32, 4)),
        "cuda:1.num_experts": tuple(range(0, 32, 4)),
        "cuda:0.experts": ops,
        "prefill_chunk": (64, 128),
    }
    model = LatencyModel(spec, machine, WORKLOAD)
    expander = Expander(spec)
    rows: list[tuple[Mapping[str, float], Mapping[str, float], list[int], list[int]]] = []
    for combination in product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        values["cuda:1.experts"] = values["cuda:0.experts"]
        placement, settings = space.decode(values | {"experts_order": "most_host_bytes"})
        plan = plan_memory(spec, expander.expand(placement), workload=WORKLOAD, settings=settings)
        over = plan.overrun_bytes(machine)
        names = [device.name for device in machine.devices]
        peaks = [over[name] + machine.by_name[name].budget_bytes for name in names]
        rows.append((*model.by_key(placement, settings), [over[n] for n in names], peaks))
    keys = sorted({key for row in rows for key in row[0]})
    return Grid(
        axes,
        np.array([[row[0].get(key, 0.0) for key in keys] for row in rows]),
        np.array([[row[1].get(key, 0.0) for key in keys] for row in rows]),
        np.array([row[2] for row in rows], float),
        np.array([row[3] for row in rows], float),
    )
