"""What the commands are asked that make or read rule files: plan, check, export."""

import glob
from pathlib import Path

from autoplace.config.about import about
from autoplace.config.command_configs import CheckConfig, ExportConfig, PlanConfig
from autoplace.config.compose import Composed
from autoplace.config.groups import choices, profile
from autoplace.config.machine import build_machine
from autoplace.config.parts import build_settings
from autoplace.config.values import needed_path, path_of, require_at_least
from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.hardware.machine import Machine
from autoplace.hardware.profile import machine_from_profile


def build_plan(composed: Composed) -> PlanConfig:
    values = composed.values
    return PlanConfig(
        machine=build_machine(composed),
        **about(composed),
        settings=build_settings(composed),
        rules=path_of(values["rules"]),
        compare=_compared(composed),
        out=path_of(values["out"]),
        calibration=path_of(values["calibration"]),
    )


def _compared(composed: Composed) -> tuple[tuple[str, Machine, str], ...]:
    """Names of hardware, on the engine that is chosen, or of engines, on the machine that is."""
    chosen = composed.values["engine"]["name"]
    compared = []
    for name in composed.values["compare"]:
        if name in choices("engine"):
            compared.append((name, build_machine(composed), name))
        elif name in choices("hardware"):
            compared.append((name, machine_from_profile(profile(name)), chosen))
        else:
            known = (*choices("hardware"), *choices("engine"))
            raise AutoplaceError(
                f"compare: no hardware or engine {name!r}{did_you_mean(name, known)}"
            )
    return tuple(compared)


def build_check(composed: Composed) -> CheckConfig:
    values = composed.values
    rules = needed_path(values, "check", "rules")
    paths = _rule_files(rules)
    if values["numa_copies"] is not None:
        require_at_least("numa_copies", values["numa_copies"], 1)
    if values["fix"] is not None and len(paths) != 1:
        raise AutoplaceError(f"fix mends one file, but rules={rules} means {len(paths)}")
    return CheckConfig(
        machine=build_machine(composed),
        **about(composed),
        settings=build_settings(composed),
        rules=rules,
        explain=values["explain"],
        fix=path_of(values["fix"]),
        numa_copies=values["numa_copies"],
        paths=paths,
    )


def _rule_files(rules: Path) -> tuple[Path, ...]:
    """The file itself, those of a folder, or those that a pattern finds; at least one."""
    if rules.is_dir():
        paths = sorted(rules.rglob("*.yaml"))
    elif rules.exists() or not set(str(rules)) & set("*?["):
        return (rules,)
    else:
        paths = [Path(name) for name in sorted(glob.glob(str(rules), recursive=True))]
    found = tuple(path for path in paths if path.is_file())
    if not found:
        raise AutoplaceError(f"rules={rules} finds no rule file")
    return found


def build_export(composed: Composed) -> ExportConfig:
    values = composed.values
    return ExportConfig(
        machine=build_machine(composed),
        **about(composed),
        settings=build_settings(composed),
        rules=needed_path(values, "export", "rules"),
        out=path_of(values["out"]),
    )
