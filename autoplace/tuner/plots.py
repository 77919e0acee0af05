"""The plots of a study as SVG text: the front, how the search went, bytes against budgets."""

import io
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autoplace.tuner.pareto import request_s
from autoplace.tuner.records import TrialRecord
from autoplace.tuner.summary import Summary
from autoplace.units import GIB

_OBVIOUS, _TRIAL, _FRONT, _BUDGET = "#d95f02", "#9aa5b1", "#1b6ca8", "#333333"
_PARTS = {"weights": "#1b6ca8", "kv_cache": "#66a61e", "workspace": "#e6ab02"}
_SIZE = (7.0, 4.2)


def pareto_svg(summary: Summary) -> str:
    """All measured placements in both objectives, with the front, the pick and the obvious."""
    figure, axes = _figure()
    measured = [record for record in summary.records if record.measured]
    _scatter(axes, [r for r in measured if not r.is_obvious], _TRIAL, "tried")
    _scatter(axes, [r for r in measured if r.is_obvious], _OBVIOUS, "obvious")
    front = sorted(summary.front, key=lambda one: one.decode_tok_per_s)
    axes.plot(
        [one.prefill_latency_s for one in front],
        [one.decode_tok_per_s for one in front],
        "o-",
        color=_FRONT,
        label="front",
    )
    if summary.best is not None:
        axes.plot(
            summary.best.prefill_latency_s,
            summary.best.decode_tok_per_s,
            "*",
            color=_FRONT,
            markersize=16,
            label=f"best for {summary.workload.name}",
        )
    axes.set_xlabel(f"prefill latency, s ({summary.basis})")
    axes.set_ylabel(f"decode, tokens/s ({summary.basis})")
    axes.legend()
    return _svg(figure)


def history_svg(summary: Summary) -> str:
    """Seconds for one request by trial, and the least so far."""
    figure, axes = _figure()
    measured = [record for record in summary.records if record.measured]
    times = [request_s(record, summary.workload) for record in measured]
    numbers = [record.number for record in measured]
    colours = [_OBVIOUS if record.is_obvious else _TRIAL for record in measured]
    axes.scatter(numbers, times, c=colours, label="measured")
    best = [min(times[: i + 1]) for i in range(len(times))]
    axes.step(numbers, best, where="post", color=_FRONT, label="least so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(f"one request of {summary.workload.name}, s ({summary.basis})")
    axes.legend()
    return _svg(figure)


def memory_svg(summary: Summary) -> str:
    """Bytes of the pick on each device, by what they are for, against its budget."""
    figure, axes = _figure()
    assert summary.best is not None
    by_device = summary.best.record.metrics.bytes_by_device
    devices = [device for device in summary.machine.devices if device.name in by_device]
    names = [device.name for device in devices]
    left = [0.0] * len(devices)
    for part, colour in _PARTS.items():
        widths = [getattr(by_device[name], part) / GIB for name in names]
        axes.barh(names, widths, left=left, color=colour, label=part.replace("_", " "))
        left = [start + width for start, width in zip(left, widths, strict=True)]
    budgets = [device.budget_bytes / GIB for device in devices]
    axes.plot(budgets, names, "|", color=_BUDGET, markersize=28, label="budget")
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set_xlabel("GiB")
    axes.legend()
    return _svg(figure)


def _scatter(axes: Axes, records: Sequence[TrialRecord], colour: str, label: str) -> None:
    axes.scatter(
        [record.metrics.prefill_latency_s.median for record in records],
        [record.metrics.decode_tok_per_s.median for record in records],
        color=colour,
        label=label,
    )


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    return figure, axes


def _svg(figure: Figure) -> str:
    """The same study gives the same text: no date, no random ids."""
    with matplotlib.rc_context({"svg.hashsalt": "autoplace", "svg.fonttype": "path"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
