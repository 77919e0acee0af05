"""What the commands are asked that look at a model and a machine: inspect, synth, probe."""

from autoplace.config.command_configs import InspectConfig, ProbeConfig, SynthConfig
from autoplace.config.compose import Composed
from autoplace.config.engine import build_engine
from autoplace.config.group_configs import ModelConfig
from autoplace.config.machine import build_machine, require_here
from autoplace.config.parts import build_model
from autoplace.config.values import (
    needed_path,
    path_of,
    require_at_least,
    require_positive,
)
from autoplace.errors import AutoplaceError


def build_inspect(composed: Composed) -> InspectConfig:
    return InspectConfig(model=build_model(composed), output=composed.values["output"])


def build_synth(composed: Composed) -> SynthConfig:
    values = composed.values
    model = build_model(composed)
    if model.path is not None:
        raise AutoplaceError("synth writes a preset: give model=NAME and out=FILE, not model.path")
    require_at_least("num_shards", values["num_shards"], 1)
    require_at_least("seed", values["seed"], 0)
    return SynthConfig(
        model=ModelConfig(
            name=model.name,
            path=None,
            preset=model.preset,
            quant=values["quant"] or model.quant,
        ),
        out=needed_path(values, "synth", "out"),
        sparse=values["sparse"],
        num_shards=values["num_shards"],
        seed=values["seed"],
        output=values["output"],
    )


def build_probe(composed: Composed) -> ProbeConfig:
    values = composed.values
    require_positive("time_limit_s", values["time_limit_s"])
    return ProbeConfig(
        machine=require_here(build_machine(composed)),
        model=build_model(composed),
        engine=build_engine(composed),
        out=path_of(values["out"]),
        time_limit_s=values["time_limit_s"],
        output=values["output"],
    )
