"""`bench`: measures one rule file, and lays out what was predicted, declared and really used."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from autoplace.bench.footprint import Footprint
from autoplace.bench.metrics import Metrics, Outcome, Spread, Status
from autoplace.bench.request import TrialRequest
from autoplace.bench.trial_process import TrialProcess, WorkerDiedError, WorkerTimedOutError
from autoplace.catalog.llama_cpp import ENGINE as LLAMA_CPP
from autoplace.commands.bench_llama_cpp import prepare_llama_cpp
from autoplace.commands.fit import Fit, fit_document, fit_of, verdict
from autoplace.commands.model_source import describe_model, model_file
from autoplace.commands.output import answer_console, print_json, progress_console, table
from autoplace.commands.role_table import role_table
from autoplace.config import BenchConfig
from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Machine
from autoplace.placement.memory import plan_memory
from autoplace.placement.settings import RunSettings
from autoplace.rules.lint import refuse_unrunnable
from autoplace.rules.match import assign
from autoplace.rules.read import RuleFile, load_rules
from autoplace.tuner.runner import Runner
from autoplace.units import format_bytes, format_seconds

EXIT_CODES = {Status.OK: 0, Status.REFUSED: 2, Status.CRASHED: 3}
"""Every other end is an answer that is no: 1."""


@dataclass(frozen=True)
class Benched:
    """Everything that the answer is made of."""

    config: BenchConfig
    model: str
    fingerprint: str
    settings: RunSettings
    fit: Fit
    outcome: Outcome
    footprint: Footprint | None
    """None where the trial gave no numbers, or the second run failed."""


def run(config: BenchConfig) -> int:
    """0 for numbers, 1 where there can be none (out of memory, …), 2 refused, 3 crashed."""
    _refuse_what_is_not_measured(config)
    if config.engine.name == LLAMA_CPP:
        benched = _bench_llama_cpp(config)
    else:
        assert config.rules is not None
        benched = _bench(config, load_rules(config.rules))
    if config.output == "json":
        print_json("bench", _document(benched))
    else:
        _print(benched)
    return EXIT_CODES.get(benched.outcome.status, 1)


def _refuse_what_is_not_measured(config: BenchConfig) -> None:
    if config.measure.predicted:
        raise AutoplaceError("bench measures; plan with the same words predicts")
    if config.engine.name not in ("builtin", LLAMA_CPP):
        raise AutoplaceError(
            f"engine={config.engine.name} cannot be measured here, only builtin and {LLAMA_CPP}; "
            "plan it"
        )


def _bench(config: BenchConfig, rule_file: RuleFile) -> Benched:
    path = model_file(config.model)
    spec = describe_model(config.model, config.workload)
    settings = config.settings.resolve(
        config.machine, rule_file.header.settings if rule_file.header else None
    )
    assignment = assign(rule_file.rules, spec, engine=config.engine.name)
    refuse_unrunnable(assignment, spec, config.machine)
    plan = plan_memory(
        spec,
        assignment,
        workload=config.workload,
        settings=settings,
        dtype_bytes=config.engine.dtype_bytes,
    )
    fit = fit_of(plan, config.machine)
    progress_console().print(f"predicted: {verdict(fit)}")
    request = TrialRequest(
        model_path=str(path.resolve()),
        rules=rule_file.body,
        engine=config.engine.name,
        machine=config.machine,
        workload=config.workload,
        settings=settings,
        dtype=config.engine.dtype,
        cuda_graphs=config.engine.cuda_graphs,
        interleave=config.engine.interleave,
        measure=config.measure.settings,
    )
    outcome = _measured(config, request)
    footprint = _footprint(request) if outcome.status is Status.OK else None
    return Benched(config, spec.name, spec.fingerprint, settings, fit, outcome, footprint)


def _bench_llama_cpp(config: BenchConfig) -> Benched:
    ready = prepare_llama_cpp(config)
    progress_console().print(f"predicted: {verdict(ready.fit)}")
    outcome = _measured(config, ready.request)
    spec = ready.spec
    return Benched(
        config, spec.name, spec.fingerprint, ready.settings, ready.fit, outcome, footprint=None
    )


def _measured(config: BenchConfig, request: TrialRequest) -> Outcome:
    runner = _runner(config)
    try:
        progress_console().print("measuring")
        return runner.run(request)
    finally:
        runner.close()


def _runner(config: BenchConfig) -> Runner:
    if config.runner.name == "inline":
        from autoplace.tuner.inline_runner import InlineRunner

        return InlineRunner()
    if config.runner.name == "process":
        from autoplace.tuner.process_runner import ProcessRunner

        return ProcessRunner()
    from autoplace.tuner.ray_runner import RayRunner

    return RayRunner(address=config.runner.address, object_store_mib=config.runner.object_store_mib)


def _footprint(request: TrialRequest) -> Footprint | None:
    """The second, untimed run. Its failure takes nothing from the measurement."""
    progress_console().print("running once more, untimed, to see what the process really takes")
    try:
        return TrialProcess().footprint(request)
    except (WorkerDiedError, WorkerTimedOutError) as error:
        progress_console().print(f"what was really used is unknown: {error}")
        return None


def bandwidth_bytes_per_s(metrics: Metrics) -> float:
    """Bytes that decoding really read a second, over all devices."""
    return metrics.bytes_per_token * metrics.decode_tok_per_s.median


def _device_bandwidth(machine: Machine) -> float:
    """What the devices could read together; emulated ones share the host's memory."""
    if machine.emulated:
        return machine.host.bandwidth_bytes_per_s
    return sum(device.bandwidth_bytes_per_s for device in machine.devices)


def _document(benched: Benched) -> dict[str, Any]:
    config, outcome = benched.config, benched.outcome
    return {
        "status": outcome.status.value,
        "reason": outcome.reason,
        "basis": outcome.basis.value,
        "hardware": config.machine.name,
        "emulated": config.machine.emulated,
        "model": benched.model,
        "fingerprint": benched.fingerprint,
        "workload": asdict(config.workload),
        "engine": config.engine.name,
        "settings": benched.settings.record(),
        "predicted": fit_document(benched.fit),
        "out_of_memory_device": outcome.out_of_memory_device,
        "out_of_memory_bytes": outcome.out_of_memory_bytes,
        "metrics": _metrics_document(outcome.metrics) if outcome.metrics else None,
        "footprint": _footprint_document(benched.footprint) if benched.footprint else None,
        "environment": dict(outcome.environment),
    }


def _metrics_document(metrics: Metrics) -> dict[str, Any]:
    return {
        "decode_tok_per_s": asdict(metrics.decode_tok_per_s),
        "prefill_latency_s": asdict(metrics.prefill_latency_s),
        "prefill_tok_per_s": metrics.prefill_tok_per_s,
        "load_s": metrics.load_s,
        "bytes_per_token": metrics.bytes_per_token,
        "bandwidth_bytes_per_s": bandwidth_bytes_per_s(metrics),
        "role_seconds": dict(metrics.role_seconds) or None,
        "quality": asdict(metrics.quality) if metrics.quality else None,
        "declared_bytes": {
            name: asdict(declared) for name, declared in metrics.bytes_by_device.items()
        },
    }


def _footprint_document(footprint: Footprint) -> dict[str, Any]:
    return {
        "is_within": footprint.is_within,
        "mapped_bytes": footprint.mapped_bytes,
        "resident_bytes": footprint.resident_bytes,
        "pools": {name: asdict(pool) for name, pool in footprint.pools.items()},
    }


def _print(benched: Benched) -> None:
    console, outcome, config = answer_console(), benched.outcome, benched.config
    emulated = " (emulated: says nothing of a GPU's speed)" if config.machine.emulated else ""
    console.print(
        f"{benched.model} on {config.machine.name}{emulated} with engine {config.engine.name}, "
        f"{config.workload.prompt_tokens} tokens of prompt and {config.workload.output_tokens} of "
        f"output; {_settings_line(benched.settings)}"
    )
    console.print(_bytes_table(benched))
    if benched.footprint is not None:
        console.print(_footprint_table(benched.footprint))
    if outcome.metrics is None:
        console.print(f"no numbers: {outcome.status.value.replace('_', ' ')}: {outcome.reason}")
        return
    console.print(_speed_table(outcome.metrics, config.machine))
    if outcome.metrics.role_seconds:
        console.print(role_table(outcome.metrics))
    console.print(_conditions_line(outcome.environment))


def _settings_line(settings: RunSettings) -> str:
    return (
        f"{settings.num_threads} threads, prefill in chunks of {settings.prefill_chunk}, "
        f"KV cache {settings.kv_type}"
    )


def _bytes_table(benched: Benched) -> Table:
    metrics = benched.outcome.metrics
    declared = metrics.bytes_by_device if metrics else {}
    rows = table("bytes per device", "device", "predicted peak", "declared peak", "budget")
    for device in benched.fit.devices:
        found = declared.get(device.device)
        rows.add_row(
            f"{device.device} {device.model}",
            format_bytes(device.peak),
            "-" if found is None else _against(found.peak, device.peak),
            format_bytes(device.budget),
        )
    return rows


def _against(declared: int, predicted: int) -> str:
    if declared == predicted:
        return f"{format_bytes(declared)} (equal)"
    return f"{format_bytes(declared)} ({declared - predicted:+d} B)"


def _footprint_table(footprint: Footprint) -> Table:
    rows = table("really used, in a run of its own", "memory", "declared", "used", "verdict")
    for name, pool in footprint.pools.items():
        verdict = "within" if pool.is_within else "more than 3 % and 300 MiB over"
        rows.add_row(
            name, format_bytes(pool.declared_bytes), format_bytes(pool.used_bytes), verdict
        )
    rows.add_row(
        "read in place from the file",
        format_bytes(footprint.mapped_bytes),
        format_bytes(footprint.resident_bytes),
        "in the page cache",
    )
    return rows


def _speed_table(metrics: Metrics, machine: Machine) -> Table:
    rows = table("measured", "figure", "median", "low", "high", "repeats")
    decode, prefill = metrics.decode_tok_per_s, metrics.prefill_latency_s
    rows.add_row("decode, tok/s", *(f"{value:.4g}" for value in _values(decode)), str(decode.n))
    rows.add_row("prefill latency", *map(format_seconds, _values(prefill)), str(prefill.n))
    rows.add_row("prefill, tok/s", f"{metrics.prefill_tok_per_s:.4g}", "", "", "")
    available = _device_bandwidth(machine)
    rows.add_row(
        f"decode reads, GB/s of {available / 1e9:.1f}",
        f"{bandwidth_bytes_per_s(metrics) / 1e9:.3g}",
        "",
        "",
        "",
    )
    if metrics.quality is not None:
        rows.add_row("mean KL, nats", f"{metrics.quality.mean_kl:.3g}", "", "", "")
        rows.add_row("top-1 agreement", f"{metrics.quality.top1_agreement:.1%}", "", "", "")
    rows.add_row("loading", format_seconds(metrics.load_s), "", "", "")
    return rows


def _values(spread: Spread) -> tuple[float, float, float]:
    return spread.median, spread.low, spread.high


def _conditions_line(environment: Mapping[str, str | int | float]) -> str:
    return "measured under: " + ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in environment.items()
    )
