"""`plan`: memory per device and speed, for obvious placements or one rule file; no measuring."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoplace.architectures.spec import ModelSpec
from autoplace.commands.fit import Fit, fit_document, fit_of, fit_table, verdict
from autoplace.commands.model_source import describe_model
from autoplace.commands.output import answer_console, print_json
from autoplace.config import PlanConfig
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment
from autoplace.placement.baselines import obvious_placements
from autoplace.placement.expand import Expander
from autoplace.placement.memory import MemoryPlan, plan_memory
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.latency import LatencyModel, Prediction
from autoplace.rules.compile import compile_rules
from autoplace.rules.match import assign
from autoplace.rules.read import load_rules
from autoplace.rules.read_back import read_back
from autoplace.units import format_bytes, format_seconds


@dataclass(frozen=True)
class PlannedPlacement:
    """One placement with what it is predicted to need and to do."""

    name: str
    settings: RunSettings
    fit: Fit
    placement: Placement | None
    """None where a rule file means no placement: it can be planned for, but not timed."""
    prediction: Prediction | None


def run(config: PlanConfig) -> int:
    """0 if a placement fits, 1 if none does."""
    spec = describe_model(config.model, config.workload)
    planned = (
        [plan_rules(config, spec, config.rules)] if config.rules else plan_obvious(config, spec)
    )
    if config.output == "json":
        print_json("plan", _document(config, spec, planned))
    else:
        _print(config, spec, planned)
    return 0 if any(placement.fit.fits for placement in planned) else 1


def plan_obvious(config: PlanConfig, spec: ModelSpec) -> list[PlannedPlacement]:
    """The placements anyone would try first, those that fit first, then the fastest first."""
    space = SearchSpace(
        spec, config.machine, config.workload, config.engine.name, kv_types=_kv_types(config)
    )

    expander = Expander(spec)

    def overrun(placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        plan = _memory(config, spec, expander.expand(placement), _settings(config, settings))
        return plan.overrun_bytes(config.machine)

    timing = LatencyModel(
        spec, config.machine, config.workload, dtype_bytes=config.engine.dtype_bytes
    )
    planned = []
    for baseline in obvious_placements(space, overrun):
        settings = _settings(config, baseline.settings)
        rules = compile_rules(baseline.placement, spec)
        assignment = assign(rules, spec, engine=config.engine.name)
        planned.append(
            PlannedPlacement(
                baseline.name,
                settings,
                fit_of(_memory(config, spec, assignment, settings), config.machine),
                baseline.placement,
                timing.predict(baseline.placement, settings),
            )
        )
    return sorted(planned, key=lambda p: (not p.fit.fits, _request_s(p, config)))


def plan_rules(config: PlanConfig, spec: ModelSpec, path: Path) -> PlannedPlacement:
    """One rule file, timed if it means a placement."""
    rule_file = load_rules(path)
    header = rule_file.header.settings if rule_file.header else None
    settings = config.settings.resolve(config.machine, header)
    assignment = assign(rule_file.rules, spec, engine=config.engine.name)
    try:
        placement = read_back(assignment, spec)
    except AutoplaceError:
        placement = None
    prediction = None
    if placement is not None and _devices(placement) <= set(config.machine.by_name):
        timing = LatencyModel(
            spec, config.machine, config.workload, dtype_bytes=config.engine.dtype_bytes
        )
        prediction = timing.predict(placement, settings)
    memory = _memory(config, spec, assignment, settings)
    return PlannedPlacement(
        path.name, settings, fit_of(memory, config.machine), placement, prediction
    )


def _memory(
    config: PlanConfig, spec: ModelSpec, assignment: Assignment, settings: RunSettings
) -> MemoryPlan:
    return plan_memory(
        spec,
        assignment,
        workload=config.workload,
        settings=settings,
        dtype_bytes=config.engine.dtype_bytes,
    )


def _settings(config: PlanConfig, default: RunSettings) -> RunSettings:
    return config.settings.resolve(config.machine, default)


def _kv_types(config: PlanConfig) -> tuple[str, ...]:
    return (config.settings.kv_type,) if config.settings.kv_type else ("f16",)


def _devices(placement: Placement) -> set[str]:
    choices = [
        choice
        for layer in placement.layers
        for choice in (layer.attention, layer.mlp, layer.experts)
        if choice is not None
    ]
    return {choice.device for choice in (*choices, placement.lm_head)} | {
        layer.device for layer in placement.layers
    }


def _request_s(planned: PlannedPlacement, config: PlanConfig) -> float:
    if planned.prediction is None:
        return float("inf")
    return planned.prediction.request_s(config.workload)


def _document(
    config: PlanConfig, spec: ModelSpec, planned: list[PlannedPlacement]
) -> dict[str, Any]:
    return {
        "basis": "predicted",
        "hardware": config.machine.name,
        "emulated": config.machine.emulated,
        "model": spec.name,
        "fingerprint": spec.fingerprint,
        "workload": asdict(config.workload),
        "engine": config.engine.name,
        "placements": [
            {
                "name": placement.name,
                "settings": asdict(placement.settings),
                **fit_document(placement.fit),
                "predicted": _prediction_document(placement, config),
            }
            for placement in planned
        ],
    }


def _prediction_document(
    planned: PlannedPlacement, config: PlanConfig
) -> dict[str, float | int] | None:
    prediction = planned.prediction
    if prediction is None:
        return None
    return {
        "decode_tok_per_s": prediction.decode_tok_per_s,
        "prefill_latency_s": prediction.prefill_latency_s,
        "request_s": prediction.request_s(config.workload),
        "bytes_per_token": prediction.bytes_per_token,
    }


def _print(config: PlanConfig, spec: ModelSpec, planned: list[PlannedPlacement]) -> None:
    console = answer_console()
    emulated = " (emulated)" if config.machine.emulated else ""
    console.print(
        f"{spec.name} on {config.machine.name}{emulated} with engine {config.engine.name}, "
        f"{config.workload.prompt_tokens} tokens of prompt and {config.workload.output_tokens} "
        "of output. Everything here is predicted: bytes by arithmetic, speed by bytes over "
        "bandwidth."
    )
    for placement in planned:
        console.print()
        console.print(fit_table(f"{placement.name}: {verdict(placement.fit)}", placement.fit))
        console.print(_speed_line(placement, config))


def _speed_line(planned: PlannedPlacement, config: PlanConfig) -> str:
    prediction = planned.prediction
    if prediction is None:
        return "no speed is predicted: the rules put parts of one layer on different devices"
    settings = planned.settings
    return (
        f"predicted: decode {prediction.decode_tok_per_s:.2f} tok/s, prefill "
        f"{format_seconds(prediction.prefill_latency_s)}, a request "
        f"{format_seconds(_request_s(planned, config))}; "
        f"{format_bytes(prediction.bytes_per_token)} read a token; {settings.num_threads} threads, "
        f"prefill in chunks of {settings.prefill_chunk}, KV cache {settings.kv_type}"
    )
