"""The result of a study on a terminal, and as one JSON document."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autoplace.tuner.publish import Published
from autoplace.tuner.records import outcome_to_json, placement_to_json
from autoplace.tuner.remeasure import Remeasured
from autoplace.tuner.report import FRONT_COLUMNS, front_rows, title, verdict
from autoplace.tuner.summary import Summary

SCHEMA_VERSION = 1


def print_summary(summary: Summary, published: Published, console: Console) -> None:
    """The front as a table, the verdict in sentences, and where the files are."""
    if summary.front:
        table = Table(*FRONT_COLUMNS, title=title(summary), title_justify="left")
        for row in front_rows(summary):
            table.add_row(*row)
        console.print(table)
    for sentence in verdict(summary):
        console.print(sentence, highlight=False)
    for path in (published.best, published.page):
        if path is not None:
            console.print(str(path), highlight=False, soft_wrap=True)


def summary_json(summary: Summary, published: Published) -> dict[str, Any]:
    """The document of `output=json`."""
    ratio, error = summary.gain or (None, None)
    return {
        "schema_version": SCHEMA_VERSION,
        "study": dict(summary.key),
        "ended": summary.ended,
        "trials": dict(summary.counts),
        "best": _point(summary.best, summary),
        "baseline": _point(summary.baseline, summary),
        "front": [_point(one, summary) for one in summary.front],
        "gain": {"ratio": ratio, "two_standard_errors": error},
        "gain_over_fit": _over_fit(summary),
        "notes": list(summary.notes),
        "noise": vars(summary.noise),
        "drift": summary.drift,
        "files": {
            "rules": _path(published.best),
            "pareto": [str(path) for path in published.pareto],
            "report": str(published.report),
            "page": str(published.page),
        },
    }


def _over_fit(summary: Summary) -> dict[str, float] | None:
    """llama.cpp only; None where `--fit` gave no figures."""
    if summary.fit_gain is None:
        return None
    ratio, error = summary.fit_gain
    return {"ratio": ratio, "two_standard_errors": error, "search_s": summary.search_s}


def _point(one: Remeasured | None, summary: Summary) -> dict[str, Any] | None:
    if one is None:
        return None
    record = one.record
    assert record.placement is not None
    assert record.settings is not None
    assert record.outcome is not None
    return {
        "trial": record.number,
        "origin": record.origin,
        "decode_tok_per_s": one.decode_tok_per_s,
        "prefill_latency_s": one.prefill_latency_s,
        "request_s": one.request_s(summary.workload),
        "num_measured_again": one.n,
        "survives": one.survives,
        "settings": record.settings.record(),
        "placement": placement_to_json(record.placement),
        "predicted_bytes": dict(record.predicted_bytes),
        "outcome": outcome_to_json(record.outcome),
    }


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
