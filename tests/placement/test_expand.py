import random
from dataclasses import replace

import pytest

from autoplace.architectures import read_preset, spec_from_geometry
from autoplace.architectures.spec import ModelSpec
from autoplace.hardware.profile import machine_from_profile
from autoplace.placement.expand import Expander
from autoplace.placement.memory import plan_memory
from autoplace.placement.placement import Choice, Placement
from autoplace.placement.space import SearchSpace
from autoplace.rules.compile import compile_rules
from autoplace.rules.match import assign
from autoplace.workload import Workload
from tests.hardware.profiles import profile

WORKLOAD = Workload("w", prompt_tokens=100, output_tokens=28, context_tokens=128)
MACHINES = {name: machine_from_profile(profile(name)) for name in ("5090-3090", "1x4090")}


def spec_of(name: str) -> ModelSpec:
    preset = read_preset(name)
    return spec_from_geometry(name, preset.geometry, quant=preset.default_quant)


@pytest.mark.parametrize("machine", sorted(MACHINES))
@pytest.mark.parametrize(
    ("engine", "model"),
    [
        *(("builtin", name) for name in ("tiny", "tiny-v3", "tiny-lite", "tiny-llama")),
        *(("builtin", name) for name in ("tiny-mixtral", "tiny-qwen2moe", "tiny-qwen3moe")),
        *(("ktransformers-0.3", name) for name in ("tiny", "tiny-v3", "tiny-qwen2moe")),
    ],
)
def test_memory_is_that_of_the_compiled_rules(model: str, engine: str, machine: str) -> None:
    spec = spec_of(model)
    space = SearchSpace(spec, MACHINES[machine], WORKLOAD, engine)
    expander = Expander(spec)
    rng = random.Random(0)
    for _ in range(10):
        placement, settings = space.decode(space.draw(rng))
        if engine != "builtin":
            placement = with_usual_cpu_experts(placement)
        by_rules = assign(compile_rules(placement, spec), spec, engine=engine)
        plans = [
            plan_memory(spec, assignment, workload=WORKLOAD, settings=settings)
            for assignment in (expander.expand(placement), by_rules)
        ]
        assert plans[0] == plans[1]


def with_usual_cpu_experts(placement: Placement) -> Placement:
    """KTransformers runs experts on the CPU by `KExpertsCPU` only."""
    layers = tuple(
        replace(layer, experts=Choice("cpu", "KExpertsCPU"))
        if layer.experts is not None and layer.experts.device == "cpu"
        else layer
        for layer in placement.layers
    )
    return replace(placement, layers=layers)
