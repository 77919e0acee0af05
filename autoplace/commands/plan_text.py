"""A plan as text and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from autoplace.commands.fit import fit_document, fit_table, verdict
from autoplace.commands.output import answer_console, table
from autoplace.commands.planning import Planned, PlannedPlacement, request_s
from autoplace.placement.placement import Choice, Placement
from autoplace.predict.engine_times import engine_times
from autoplace.predict.explain import AtLength, why_it_loses
from autoplace.predict.latency import PART_NAMES, Prediction
from autoplace.predict.zones import Zone
from autoplace.units import format_bytes, format_seconds
from autoplace.workload import Workload

LEAST_SHOWN = 0.005
"""Share of a token or of the prefill from which a part is worth its words."""
LEAST_DOUBTED = 0.1
"""The same for launches that are a guess."""


def print_plan(planned: Planned, workload: Workload) -> None:
    """The pick in full, then what else there is."""
    console = answer_console()
    console.print(_opening(planned, workload), soft_wrap=True)
    pick = planned.pick
    first = planned.placements[0]
    console.print()
    console.print(fit_table(f"{first.name}: {_verdict(first)}", first.fit))
    _print_speed(console, first, workload)
    if pick is None:
        for other in planned.placements[1:]:
            console.print()
            console.print(fit_table(f"{other.name}: {_verdict(other)}", other.fit))
            _print_speed(console, other, workload)
        return
    _print_reasons(console, planned, workload)
    if len(planned.placements) > 1:
        console.print()
        console.print(_others(planned, workload))
    if planned.at_lengths:
        console.print()
        console.print(_lengths(planned))


def _opening(planned: Planned, workload: Workload) -> str:
    emulated = " (emulated)" if planned.machine.emulated else ""
    return (
        f"{planned.spec.name} on {planned.machine.name}{emulated} with engine {planned.engine}, "
        f"{workload.prompt_tokens} tokens of prompt and {workload.output_tokens} of output. "
        f"Everything here is predicted: bytes by arithmetic, speed from {source(planned)}."
    )


def source(planned: Planned) -> str:
    """Where the constants come from, and what that is worth."""
    calibration = planned.calibration
    if not calibration.machine:
        return (
            "the profile's data-sheet figures with cautious efficiencies (±"
            f"{calibration.decode_error:.0%} in decode, ±{calibration.prefill_error:.0%} in "
            "prefill; `probe` measures this machine)"
        ).replace("%", " %")
    return (
        f"a calibration by {calibration.source} (±{calibration.decode_error:.0%} in decode, "
        f"±{calibration.prefill_error:.0%} in prefill)"
    ).replace("%", " %")


def _verdict(placement: PlannedPlacement) -> str:
    text = verdict(placement.fit)
    return f"{text}; close: run it before relying on it" if _is_close(placement) else text


def _is_close(placement: PlannedPlacement) -> bool:
    return placement.zone is Zone.CLOSE


def _print_speed(console: Console, placement: PlannedPlacement, workload: Workload) -> None:
    prediction = placement.prediction
    if prediction is None:
        console.print(
            "no speed is predicted: the rules put parts of one layer on different devices, or use "
            "devices that are not there",
            soft_wrap=True,
        )
        return
    settings = placement.settings
    if placement.placement is not None:
        console.print(layout(placement.placement), soft_wrap=True)
    console.print(
        f"predicted: decode {band(prediction.decode_tok_per_s, prediction.decode_error)} tok/s, "
        f"prefill {format_seconds(prediction.prefill_latency_s)}, a request "
        f"{format_seconds(request_s(placement, workload))}; "
        f"{format_bytes(prediction.bytes_per_token)} read a token; {settings.num_threads} threads, "
        f"prefill in chunks of {settings.prefill_chunk}, KV cache {settings.kv_type}",
        soft_wrap=True,
    )
    console.print(f"time by part: {_by_part(prediction)}", soft_wrap=True)


def _by_part(prediction: Prediction) -> str:
    token, prompt = sum(prediction.decode_s.values()), sum(prediction.prefill_s.values())
    parts = []
    for part, name in PART_NAMES.items():
        of_token, of_prompt = prediction.decode_s[part] / token, prediction.prefill_s[part] / prompt
        if max(of_token, of_prompt) >= LEAST_SHOWN:
            seconds = format_seconds(prediction.decode_s[part])
            parts.append(f"{name} {seconds} ({of_token:.0%}; of the prefill {of_prompt:.0%})")
    return ", ".join(parts).replace("%", " %")


def _print_reasons(console: Console, planned: Planned, workload: Workload) -> None:
    """What binds the pick, how sure it is that nothing is better, and why the next best loses."""
    pick = planned.placements[0]
    assert pick.prediction is not None
    console.print(pick.prediction.ceiling)
    doubt = engine_times(planned.engine).doubt
    if doubt and _launches_are_guessed(planned, pick.prediction):
        console.print(doubt, soft_wrap=True)
    for margin in planned.margins[:1]:
        console.print(str(margin), soft_wrap=True)
    if not planned.margins and planned.machine.gpus and planned.spec.moe_layers:
        console.print("no expert is left on the host: more memory on the GPUs would give nothing")
    if planned.bound_s is not None:
        gap = 1 - planned.bound_s / request_s(pick, workload)
        gap_text = f"by more than {gap:.1%}".replace("%", " %") if gap > 5e-4 else "at all"
        console.print(f"by this model no placement is better {gap_text}")
    for other in planned.placements[1:2]:
        if other.prediction is not None and other.fit.fits:
            why = why_it_loses(other.prediction, pick.prediction, workload)
            console.print(f"{other.name} loses: {why}", soft_wrap=True)


def _launches_are_guessed(planned: Planned, prediction: Prediction) -> bool:
    """Whether launches that nobody timed are a good part of a token."""
    calibration, machine = planned.calibration, planned.machine
    was_timed = calibration.launch_s or "launch gpu" in calibration.decode
    share = prediction.decode_s["launches"] / sum(prediction.decode_s.values())
    return bool(machine.gpus) and not machine.emulated and not was_timed and share >= LEAST_DOUBTED


def _others(planned: Planned, workload: Workload) -> Any:
    rows = table(
        "beside it", "placement", "decode, tok/s", "prefill", "request", "fits", "why it loses"
    )
    pick = planned.placements[0]
    for other in planned.placements[1:]:
        prediction = other.prediction
        if prediction is None or pick.prediction is None:
            continue
        rows.add_row(
            other.name,
            f"{prediction.decode_tok_per_s:.2f}",
            format_seconds(prediction.prefill_latency_s),
            format_seconds(request_s(other, workload)),
            "yes" if other.fit.fits else "no",
            why_it_loses(prediction, pick.prediction, workload),
        )
    return rows


def _lengths(planned: Planned) -> Any:
    rows = table("at other lengths", "prompt", "context", "decode, tok/s", "prefill", "fits")
    for one in planned.at_lengths:
        rows.add_row(
            str(one.workload.prompt_tokens),
            str(one.workload.context_tokens),
            f"{one.prediction.decode_tok_per_s:.2f}",
            format_seconds(one.prediction.prefill_latency_s),
            over_text(one.overrun_bytes),
        )
    return rows


def over_text(overrun_bytes: Mapping[str, int]) -> str:
    over = [f"{format_bytes(b)} over on {name}" for name, b in overrun_bytes.items() if b > 0]
    return ", ".join(over) if over else "yes"


def band(value: float, error: float) -> str:
    """`12.1 (8.5 to 15.7)`"""
    return f"{value:.2f} ({value * (1 - error):.1f} to {value * (1 + error):.1f})"


def layout(placement: Placement) -> str:
    """`layers cuda:0 0-30, cuda:1 31-59; experts cuda:0 22, cuda:1 22, cpu 15; KLinearMarlin 4`."""
    ranges: list[str] = []
    start = 0
    for i, layer in enumerate(placement.layers):
        is_last = i + 1 == len(placement.layers)
        if is_last or placement.layers[i + 1].device != layer.device:
            ranges.append(f"{layer.device} {start}-{i}")
            start = i + 1
    counts: dict[str, int] = {}
    for layer in placement.layers:
        if layer.experts is not None:
            name = f"{layer.experts.device} {_short(layer.experts)}"
            counts[name] = counts.get(name, 0) + 1
    experts = ", ".join(f"{name} in {count} layers" for name, count in sorted(counts.items()))
    attention = sorted({_short(layer.attention) for layer in placement.layers})
    mlps = sorted({_short(layer.mlp) for layer in placement.layers if layer.mlp is not None})
    return (
        f"layers {', '.join(ranges)}; experts {experts or 'none'}; attention "
        f"{', '.join(attention)}; mlp {', '.join(mlps) or 'none'}; lm_head "
        f"{placement.lm_head.device} {_short(placement.lm_head)}"
    )


def _short(choice: Choice) -> str:
    return f"{choice.operator} {choice.num_bits}" if choice.num_bits else choice.operator


# JSON.


def plan_document(planned: Planned, workload: Workload) -> dict[str, Any]:
    """For `output=json`."""
    pick = planned.pick
    return {
        "basis": "predicted",
        "hardware": planned.machine.name,
        "emulated": planned.machine.emulated,
        "model": planned.spec.name,
        "fingerprint": planned.spec.fingerprint,
        "workload": asdict(workload),
        "engine": planned.engine,
        "calibration": {
            "source": planned.calibration.source,
            "machine": planned.calibration.machine or None,
            "num_trials": planned.calibration.num_trials,
            "decode_error": planned.calibration.decode_error,
            "prefill_error": planned.calibration.prefill_error,
        },
        "pick": pick and placement_document(pick, workload),
        "gap": _gap(planned, workload),
        "ceiling": pick.prediction.ceiling if pick and pick.prediction else None,
        "margins": [
            {
                "device": margin.device,
                "left_bytes": margin.left_bytes,
                "next_bytes": margin.next_bytes,
                "missing_bytes": margin.missing_bytes,
                "gain_tok_per_s": margin.gain_tok_per_s,
                "gain_tok_per_s_per_gib": margin.gain_per_gib,
            }
            for margin in planned.margins
        ],
        "front": [placement_document(one, workload) for one in planned.front],
        "placements": [placement_document(one, workload) for one in planned.placements],
        "at_lengths": [_length_document(one) for one in planned.at_lengths],
    }


def _gap(planned: Planned, workload: Workload) -> float | None:
    """How much better than the pick anything can be, relative; None where nothing fits."""
    if planned.pick is None or planned.bound_s is None:
        return None
    return max(0.0, 1 - planned.bound_s / request_s(planned.pick, workload))


def placement_document(placement: PlannedPlacement, workload: Workload) -> dict[str, Any]:
    return {
        "name": placement.name,
        "layout": layout(placement.placement) if placement.placement else None,
        "settings": placement.settings.record(),
        "zone": placement.zone.value,
        **fit_document(placement.fit),
        "predicted": _prediction_document(placement, workload),
    }


def _prediction_document(placement: PlannedPlacement, workload: Workload) -> dict[str, Any] | None:
    prediction = placement.prediction
    if prediction is None:
        return None
    return {
        "decode_tok_per_s": prediction.decode_tok_per_s,
        "decode_error": prediction.decode_error,
        "prefill_latency_s": prediction.prefill_latency_s,
        "prefill_error": prediction.prefill_error,
        "request_s": prediction.request_s(workload),
        "bytes_per_token": prediction.bytes_per_token,
        "decode_s": dict(prediction.decode_s),
        "prefill_s": dict(prediction.prefill_s),
        "ceiling": prediction.ceiling,
    }


def _length_document(one: AtLength) -> dict[str, Any]:
    return {
        "prompt_tokens": one.workload.prompt_tokens,
        "context_tokens": one.workload.context_tokens,
        "decode_tok_per_s": one.prediction.decode_tok_per_s,
        "prefill_latency_s": one.prediction.prefill_latency_s,
        "overrun_bytes": {name: b for name, b in one.overrun_bytes.items() if b > 0},
    }
