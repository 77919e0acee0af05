"""Puts the results of a study where a team can commit them: no path and no host name in them."""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Basis, Spread
from autoplace.catalog.llama_cpp import ENGINE as LLAMA_CPP
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import parse_args
from autoplace.export.llama_cpp.preset import export_preset
from autoplace.rules.export import export_rules
from autoplace.rules.header import Figure, Header
from autoplace.tuner.llama_cpp import lines_to_paste
from autoplace.tuner.plots import pareto_svg
from autoplace.tuner.remeasure import Remeasured
from autoplace.tuner.report import PARETO_PLOT, gain_sentence, markdown, page
from autoplace.tuner.summary import Summary

BEST = "best"
RULES, PRESET = ".rules.yaml", ".preset.ini"
"""Endings of what an engine is driven by: a rule file, or llama-server's preset."""
_POINT = re.compile(r"trial-\d+\.(rules\.yaml|preset\.ini)")


@dataclass(frozen=True)
class Published:
    """Files that were written."""

    folder: Path
    best: Path | None
    pareto: tuple[Path, ...]
    report: Path
    page: Path


def study_folder(study_dir: Path, key: Mapping[str, object]) -> Path:
    """`<hardware>/<model>/<workload>`; below it what was only predicted, or for another engine."""
    parts = [str(key[name]) for name in ("hardware", "model", "workload")]
    below = []
    if key["basis"] == Basis.PREDICTED.value:
        below.append("predicted")
    if key["engine"] != "builtin":
        below.append(str(key["engine"]))
    return study_dir.joinpath(*map(_file_name, parts + below))


def publish(summary: Summary, spec: ModelSpec, study_dir: Path) -> Published:
    """Write rule files, report and plot; each is complete before it takes its name."""
    folder = study_folder(study_dir, summary.key)
    best: Path | None = None
    points: list[Path] = []
    if summary.best is not None:
        ending = PRESET if summary.key["engine"] == LLAMA_CPP else RULES
        best = folder / f"{BEST}{ending}"
        _export(best, summary.best, summary, spec)
        for one in summary.front:
            points.append(folder / "pareto" / f"trial-{one.record.number}{ending}")
            _export(points[-1], one, summary, spec)
        _write(folder / PARETO_PLOT, pareto_svg(summary))
    _remove_old_points(folder / "pareto", points)
    report, html = folder / "report.md", folder / "report.html"
    _write(report, markdown(summary))
    _write(html, page(summary))
    return Published(folder, best, tuple(points), report, html)


def _export(path: Path, one: Remeasured, summary: Summary, spec: ModelSpec) -> None:
    record = one.record
    assert record.placement is not None
    if summary.key["engine"] == LLAMA_CPP:
        args = parse_args(record.rules)
        export_preset(path, spec.name, args, header_of(one, summary))
        return
    export_rules(path, record.placement, spec, header_of(one, summary), body=record.rules)


def header_of(one: Remeasured, summary: Summary) -> Header:
    """What the rule file says of the placement besides its rules."""
    record, key, workload = one.record, summary.key, summary.workload
    assert record.settings is not None
    metrics = record.metrics
    quality = metrics.quality
    is_best = one is summary.best
    return Header(
        engine=str(key["engine"]),
        model=str(key["model"]),
        fingerprint=str(key["model_fingerprint"]),
        hardware=str(key["hardware"]),
        basis=summary.basis,
        settings=record.settings,
        workload=workload.name,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        context_tokens=workload.context_tokens,
        predicted_bytes=dict(record.predicted_bytes),
        measured_bytes=_measured_bytes(one, summary),
        decode_tok_per_s=_figure(metrics.decode_tok_per_s, one.decode_tok_per_s),
        prefill_latency_s=_figure(metrics.prefill_latency_s, one.prefill_latency_s),
        mean_kl=quality.mean_kl if quality else None,
        top1_agreement=quality.top1_agreement if quality else None,
        quality_positions=quality.num_positions if quality else 0,
        why=_why(one, summary),
        gain=gain_sentence(summary) if is_best else "",
        launch=_launch(one, summary),
    )


def _launch(one: Remeasured, summary: Summary) -> tuple[str, ...]:
    """What to paste."""
    if summary.key["engine"] == LLAMA_CPP:
        return lines_to_paste(one.record.rules)
    return ("python -m autoplace bench rules=FILE",)


def _measured_bytes(one: Remeasured, summary: Summary) -> dict[str, int]:
    if summary.basis == Basis.PREDICTED.value:
        return {}
    return {name: parts.peak for name, parts in one.record.metrics.bytes_by_device.items()}


def _figure(spread: Spread, final: float) -> Figure:
    """The final mean, with the extremes that include the search's own repeats."""
    return Figure(final, min(spread.low, final), max(spread.high, final), spread.n)


def _why(one: Remeasured, summary: Summary) -> str:
    seconds = one.request_s(summary.workload)
    lengths = f"{summary.workload.prompt_tokens} tokens in and {summary.workload.output_tokens} out"
    if one is summary.best:
        return f"least time for {lengths}: {seconds:.4g} s"
    why = f"on the front of decode rate and prefill latency; {lengths} take {seconds:.4g} s"
    return why if one.survives else f"{why}; did not survive the noise when measured again"


def _remove_old_points(folder: Path, points: list[Path]) -> None:
    """Points of an earlier call that are on the front no more. Files of others stay."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if _POINT.fullmatch(path.name) and path not in points:
            path.unlink()


def _file_name(part: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", part).strip(".") or "unnamed"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        draft = Path(name)
        try:
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            draft.chmod(0o644)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise AutoplaceError(f"cannot write {path}: {error.strerror}") from error
