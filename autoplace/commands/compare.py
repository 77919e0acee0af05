"""`plan compare=[…]`: the best placement of the same model on several machines, or engines."""

from typing import Any

from autoplace.commands.model_source import describe_model
from autoplace.commands.output import answer_console, print_json, table
from autoplace.commands.plan_text import layout, placement_document, source
from autoplace.commands.planning import Planned, PlannedPlacement, Planner, request_s
from autoplace.config import PlanConfig
from autoplace.errors import AutoplaceError
from autoplace.predict.calibration_store import find_calibration
from autoplace.predict.explain import why_it_loses
from autoplace.units import format_seconds
from autoplace.workload import Workload


def compare(config: PlanConfig) -> int:
    """0 if the model fits on one of them, 1 if on none."""
    if config.calibration is not None:
        raise AutoplaceError(
            f"calibration={config.calibration} is of one machine and engine, but plan "
            "compares several: each takes the one that `probe` kept of it, so leave it out"
        )
    spec = describe_model(config.model, config.workload)
    plans = []
    for name, machine, engine in config.compare:
        calibration = find_calibration(machine, engine, None)
        planner = Planner(config, spec, machine=machine, engine=engine, calibration=calibration)
        plans.append((name, planner.plan(lengths=False)))
    if config.output == "json":
        print_json("plan", _document(plans, config.workload))
    else:
        _print(plans, config.workload)
    return 0 if any(planned.pick for _, planned in plans) else 1


def _print(plans: list[tuple[str, Planned]], workload: Workload) -> None:
    console = answer_console()
    first = plans[0][1]
    console.print(
        f"{first.spec.name}, {workload.prompt_tokens} tokens of prompt and "
        f"{workload.output_tokens} of output. Everything here is predicted, from {source(first)}.",
        soft_wrap=True,
    )
    rows = table("", "what", "decode, tok/s", "prefill", "request", "experts on GPUs", "error")
    for name, planned in plans:
        rows.add_row(name, *_row(planned, workload))
    console.print(rows)
    for name, planned in plans:
        for line in _lines(planned, first, workload):
            console.print(f"{name}: {line}", soft_wrap=True)


def _row(planned: Planned, workload: Workload) -> tuple[str, ...]:
    pick = planned.pick
    if pick is None or pick.prediction is None:
        return "-", "-", "does not fit", "-", "-"
    prediction = pick.prediction
    return (
        f"{prediction.decode_tok_per_s:.2f}",
        format_seconds(prediction.prefill_latency_s),
        format_seconds(request_s(pick, workload)),
        f"{experts_on_gpus(pick)} of {len(planned.spec.moe_layers)}",
        f"±{prediction.decode_error:.0%}".replace("%", " %"),
    )


def experts_on_gpus(pick: PlannedPlacement) -> int:
    """Layers whose routed experts are on a GPU."""
    assert pick.placement is not None
    return sum(
        layer.experts is not None and layer.experts.device != "cpu"
        for layer in pick.placement.layers
    )


def _lines(planned: Planned, first: Planned, workload: Workload) -> list[str]:
    pick = planned.pick
    if pick is None:
        over = [
            f"{device.device} by {-device.margin} B"
            for device in planned.placements[0].fit.devices
            if device.margin < 0
        ]
        return [f"nothing fits; {planned.placements[0].name} is over on {', '.join(over)}"]
    assert pick.placement is not None
    assert pick.prediction is not None
    lines = [layout(pick.placement), pick.prediction.ceiling]
    lines += [str(margin) for margin in planned.margins[:1]]
    base = first.pick
    if planned is not first and base is not None and base.prediction is not None:
        lines.append(
            f"against the first: {why_it_loses(pick.prediction, base.prediction, workload)}"
        )
    return lines


def _document(plans: list[tuple[str, Planned]], workload: Workload) -> dict[str, Any]:
    return {
        "basis": "predicted",
        "compare": [
            {
                "name": name,
                "hardware": planned.machine.name,
                "engine": planned.engine,
                "pick": planned.pick and placement_document(planned.pick, workload),
                "margins": [str(margin) for margin in planned.margins],
            }
            for name, planned in plans
        ],
    }
