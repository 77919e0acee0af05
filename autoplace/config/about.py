"""What all the commands have alike that plan, check, export, run or report on placements."""

from typing import TypedDict

from autoplace.config.compose import Composed
from autoplace.config.engine import build_engine
from autoplace.config.group_configs import EngineConfig, ModelConfig
from autoplace.config.parts import build_model, build_workload
from autoplace.workload import Workload


class About(TypedDict):
    """Keywords of their configs."""

    model: ModelConfig
    workload: Workload
    engine: EngineConfig
    output: str


def about(composed: Composed) -> About:
    """The groups `model`, `workload` and `engine`, built, and the kind of output."""
    return About(
        model=build_model(composed),
        workload=build_workload(composed),
        engine=build_engine(composed),
        output=composed.values["output"],
    )
