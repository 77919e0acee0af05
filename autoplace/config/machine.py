"""The machine that a command is about."""

from autoplace.config.compose import Composed
from autoplace.config.group_configs import MeasureConfig
from autoplace.config.values import require_at_least, require_folder_name
from autoplace.hardware.machine import Machine
from autoplace.hardware.profile import machine_from_profile


def build_machine(composed: Composed) -> Machine:
    """The machine; a profile with changed numbers gets a name that says so."""
    profile = dict(composed.values["hardware"])
    require_folder_name("hardware.name", profile["name"])
    for key in ("num_cores", "numa_nodes"):
        if profile[key] is not None:
            require_at_least(f"hardware.{key}", profile[key], 1)
    changed = composed.changed("hardware")
    if profile["name"] is not None or composed.choices["hardware"] == "auto":
        profile["name"] = "-".join([profile["name"] or "auto", *changed])
    return machine_from_profile(profile)


def build_measured_machine(composed: Composed, measure: MeasureConfig) -> Machine:
    machine = build_machine(composed)
    return machine if measure.predicted else require_here(machine)


def require_here(machine: Machine) -> Machine:
    """The machine, if it is here. Who does not measure needs no look at the GPUs."""
    from autoplace.hardware.detect import require_present

    return require_present(machine)
