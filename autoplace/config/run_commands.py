"""What the commands are asked that run placements or read of runs: bench, tune, report."""

from autoplace.config.about import about
from autoplace.config.command_configs import BenchConfig, ReportConfig, TuneConfig
from autoplace.config.compose import Composed
from autoplace.config.group_configs import RunnerConfig
from autoplace.config.machine import build_machine, build_measured_machine
from autoplace.config.parts import build_measure, build_sampler, build_settings, build_storage
from autoplace.config.values import (
    needed_path,
    path_of,
    require_at_least,
    require_one_of,
    require_positive,
)
from autoplace.errors import AutoplaceError
from autoplace.placement.settings import KV_TYPES


def build_bench(composed: Composed) -> BenchConfig:
    values = composed.values
    rules = path_of(values["rules"])
    if rules is None and values["engine"]["name"] != "llama.cpp":
        rules = needed_path(values, "bench", "rules")
    measure = build_measure(composed)
    return BenchConfig(
        machine=build_measured_machine(composed, measure),
        **about(composed),
        settings=build_settings(composed),
        measure=measure,
        runner=RunnerConfig(**values["runner"]),
        rules=rules,
    )


def build_tune(composed: Composed) -> TuneConfig:
    values = composed.values
    require_at_least("n_trials", values["n_trials"], 1)
    require_at_least("audit_prunes", values["audit_prunes"], 0)
    require_one_of("kv_type", values["kv_type"], KV_TYPES)
    for key in ("timeout_s", "max_kl"):
        if values[key] is not None:
            require_positive(key, values[key])
    study_dir, measure = needed_path(values, "tune", "study_dir"), build_measure(composed)
    if values["beside"] is not None:
        require_one_of("beside", values["beside"], ("builtin",))
        if values["engine"]["name"] != "llama.cpp" or measure.predicted:
            raise AutoplaceError("beside=builtin is for a measured tune of engine=llama.cpp")
    return TuneConfig(
        machine=build_measured_machine(composed, measure),
        **about(composed),
        measure=measure,
        sampler=build_sampler(composed),
        runner=RunnerConfig(**values["runner"]),
        storage=build_storage(composed, study_dir),
        n_trials=values["n_trials"],
        timeout_s=values["timeout_s"],
        rules=path_of(values["rules"]),
        study_dir=study_dir,
        max_kl=values["max_kl"],
        prune=values["prune"],
        audit_prunes=values["audit_prunes"],
        beside=values["beside"],
        calibration=path_of(values["calibration"]),
        kv_type=values["kv_type"],
    )


def build_report(composed: Composed) -> ReportConfig:
    values = composed.values
    require_one_of("kv_type", values["kv_type"], KV_TYPES)
    study_dir = needed_path(values, "report", "study_dir")
    return ReportConfig(
        machine=build_machine(composed),
        **about(composed),
        measure=build_measure(composed),
        storage=build_storage(composed, study_dir),
        study_dir=study_dir,
        max_kl=values["max_kl"],
        kv_type=values["kv_type"],
    )
