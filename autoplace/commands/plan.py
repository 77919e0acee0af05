"""`plan`: the placements that are predicted to be best, what they need, and why; no measuring."""

from autoplace.catalog import llama_cpp
from autoplace.commands.compare import compare
from autoplace.commands.model_source import describe_model
from autoplace.commands.output import print_json, progress_console
from autoplace.commands.plan_text import plan_document, print_plan
from autoplace.commands.planning import Planned, Planner
from autoplace.config import PlanConfig
from autoplace.export.llama_cpp import args_of_placement, buffers_of
from autoplace.export.llama_cpp.preset import export_preset
from autoplace.predict.calibration_store import find_calibration
from autoplace.rules.export import export_rules
from autoplace.rules.header import Figure, Header


def run(config: PlanConfig) -> int:
    """0 if a placement fits, 1 if none does."""
    if config.compare:
        return compare(config)
    spec = describe_model(config.model, config.workload)
    calibration = find_calibration(config.machine, config.engine.calibrated_as, config.calibration)
    planner = Planner(config, spec, calibration=calibration)
    planned = planner.plan_rules() if config.rules else planner.plan()
    if config.output == "json":
        print_json("plan", plan_document(planned, config.workload))
    else:
        print_plan(planned, config.workload)
    if config.out is not None and planned.pick is not None and config.rules is None:
        _write_rules(config, planned)
    return 0 if any(placement.fit.fits for placement in planned.placements) else 1


def _write_rules(config: PlanConfig, planned: Planned) -> None:
    """The pick as a rule file, or llama-server's preset, that says it was only predicted."""
    pick = planned.pick
    assert config.out is not None
    assert pick is not None
    assert pick.placement is not None
    assert pick.prediction is not None
    prediction, workload = pick.prediction, config.workload
    header = Header(
        engine=planned.engine,
        model=planned.spec.name,
        fingerprint=planned.spec.fingerprint,
        hardware=planned.machine.name,
        basis="predicted",
        settings=pick.settings,
        workload=workload.name,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        context_tokens=workload.context_tokens,
        predicted_bytes={device.device: device.peak for device in pick.fit.devices},
        decode_tok_per_s=_figure(prediction.decode_tok_per_s, prediction.decode_error),
        prefill_latency_s=_figure(prediction.prefill_latency_s, prediction.prefill_error),
        why="the least seconds a request by prediction; nothing was measured",
    )
    if planned.engine == llama_cpp.ENGINE:
        args = args_of_placement(
            pick.placement,
            pick.settings,
            planned.spec,
            buffers_of(planned.machine),
            context_tokens=workload.context_tokens,
        )
        export_preset(config.out, planned.spec.name, args, header)
    else:
        export_rules(config.out, pick.placement, planned.spec, header)
    progress_console().print(f"wrote {config.out}")


def _figure(value: float, error: float) -> Figure:
    return Figure(value, value * (1 - error), value * (1 + error), 0)
