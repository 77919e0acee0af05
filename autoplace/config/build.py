"""From checked values to what a command is asked to do."""

from collections.abc import Callable, Mapping, Sequence

from autoplace.config.command_configs import Config
from autoplace.config.compose import Composed, compose_command
from autoplace.config.model_commands import build_inspect, build_probe, build_synth
from autoplace.config.rule_commands import build_check, build_export, build_plan
from autoplace.config.run_commands import build_bench, build_report, build_tune
from autoplace.config.values import require_one_of

OUTPUTS = ("text", "json")
BUILDERS: Mapping[str, Callable[[Composed], Config]] = {
    "inspect": build_inspect,
    "synth": build_synth,
    "probe": build_probe,
    "plan": build_plan,
    "check": build_check,
    "export": build_export,
    "bench": build_bench,
    "tune": build_tune,
    "report": build_report,
}


def load_config(command: str, overrides: Sequence[str]) -> Config:
    """The frozen config of a command from `key=value` words in Hydra's grammar.

    Raises `AutoplaceError`, one line each, for keys, groups and values that do not exist, with
    the near miss; and for a profile whose GPUs are not here where it is to be measured.
    """
    composed = compose_command(command, overrides)
    require_one_of("output", composed.values["output"], OUTPUTS)
    return BUILDERS[command](composed)
