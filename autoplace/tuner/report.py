"""The report of a study: its facts as sections of tables, rendered as Markdown and as one page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jinja2 import Environment

from autoplace import __version__
from autoplace.catalog.llama_cpp import ENGINE as LLAMA_CPP
from autoplace.tuner.accuracy import factors, sentences
from autoplace.tuner.llama_cpp import lines_to_paste
from autoplace.tuner.pareto import best_of, request_s
from autoplace.tuner.plots import history_svg, memory_svg, pareto_svg
from autoplace.tuner.records import TrialRecord
from autoplace.tuner.remeasure import Remeasured, is_fitted
from autoplace.tuner.summary import Summary, describe_placement
from autoplace.units import format_bytes, format_seconds

PARETO_PLOT = "pareto.svg"


@dataclass(frozen=True)
class Table:
    """A heading, sentences, and perhaps rows. Cells are plain text."""

    title: str
    sentences: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = field(default=())


def markdown(summary: Summary) -> str:
    """The short report that is committed; the plot lies beside it."""
    lines = [f"# {title(summary)}", ""]
    for table in tables(summary):
        lines += [f"## {table.title}", ""]
        lines += [f"{sentence}\n" for sentence in table.sentences]
        if table.rows:
            lines += [_row(table.columns), _row(["---"] * len(table.columns))]
            lines += [*map(_row, table.rows), ""]
        if table.title == FRONT and summary.best is not None:
            lines += [f"![Measured placements and the front]({PARETO_PLOT})", ""]
    return "\n".join(lines)


def page(summary: Summary) -> str:
    """The whole study as one HTML page that needs no other file."""
    plots = []
    if summary.best is not None:
        plots = [
            ("All placements, and the front", pareto_svg(summary)),
            ("How the search went", history_svg(summary)),
            ("The pick's bytes against the budgets", memory_svg(summary)),
        ]
    sections = [*tables(summary), _all_trials(summary)]
    template = Environment(autoescape=True).from_string(_PAGE)
    return template.render(title=title(summary), sections=sections, plots=plots)


def title(summary: Summary) -> str:
    key = summary.key
    return f"{key['model']} on {key['hardware']}, {key['workload']} ({summary.basis})"


RESULT = "Result"
FRONT = "Front"


def tables(summary: Summary) -> Iterator[Table]:
    yield Table(RESULT, tuple(verdict(summary)))
    if summary.best is not None:
        yield _front(summary)
        yield _memory(summary.best)
        yield _obvious(summary)
        yield from _predictions(summary)
    yield _conditions(summary)


def verdict(summary: Summary) -> Iterator[str]:
    """What was found, in sentences."""
    if summary.best is None:
        yield "No placement was measured, so there is nothing to choose."
        yield from nearest_miss(summary)
        return
    best, workload = summary.best, summary.workload
    yield (
        f"Best for {workload.name} ({workload.prompt_tokens} tokens in, {workload.output_tokens} "
        f"out): trial {best.record.number}, {format_seconds(best.request_s(workload))} a request, "
        f"{best.decode_tok_per_s:.4g} tokens/s in decode, prefill in "
        f"{format_seconds(best.prefill_latency_s)} ({summary.basis})."
    )
    yield gain_sentence(summary)
    if summary.key["engine"] == LLAMA_CPP:
        yield fit_sentence(summary)
        yield from (f"Note: {note}." for note in summary.notes)
        yield from (f"To paste: {line}" for line in lines_to_paste(best.record.rules))
    if len(summary.front) == 1:
        yield "One placement dominates: none has a faster decode or a shorter prefill."
    if summary.basis == "emulated":
        yield "Its GPUs are budgets in host memory: this says nothing of a real GPU's speed."
    if summary.basis == "predicted":
        yield "Nothing was measured: every figure comes from the cost model."


def gain_sentence(summary: Summary) -> str:
    if summary.gain is None or summary.best is None or summary.baseline is None:
        return "No obvious placement was measured to compare with."
    ratio, error = summary.gain
    name = summary.baseline.record.origin.removeprefix("obvious: ")
    if summary.best.record.number == summary.baseline.record.number:
        return f"The best is an obvious placement ({name}): the search found none that beats it."
    how = "measured in turn" if summary.baseline.n else f"as {summary.basis} in the search"
    text = f"{ratio:.3f} ± {error:.3f} times as fast as the best obvious one ({name}), {how}"
    return f"{text}." if ratio - error > 1 else f"{text}: that is within the noise."


def fit_sentence(summary: Summary) -> str:
    """The gain over llama.cpp's own `--fit`, its noise, and what it cost to find."""
    minutes = f"the search took {summary.search_s / 60:.1f} minutes"
    if summary.fit_gain is None or summary.best is None or summary.fitted is None:
        failed = next((record for record in summary.records if is_fitted(record)), None)
        why = f": {failed.reason or failed.status}" if failed else ""
        return f"llama.cpp's own --fit gave no figures{why}; {minutes}."
    if summary.best.record.number == summary.fitted.record.number:
        return f"llama.cpp's own --fit is the best: nothing that was tried beats it; {minutes}."
    ratio, error = summary.fit_gain
    within = "" if ratio - error > 1 else ", which is within the noise"
    return (
        f"{ratio:.3f} ± {error:.3f} times as fast as llama.cpp's own --fit "
        f"({format_seconds(summary.fitted.request_s(summary.workload))} a request){within}; "
        f"{minutes}."
    )


def nearest_miss(summary: Summary) -> Iterator[str]:
    """Of the placements that did not fit, the one that misses by the least bytes."""
    misses = [
        (sum(over for over in record.constraints.values() if over > 0), record)
        for record in summary.records
        if not record.feasible
    ]
    if misses:
        _, record = min(misses, key=lambda miss: (miss[0], miss[1].number))
        over = ", ".join(
            f"{format_bytes(value)} on {name}"
            for name, value in record.constraints.items()
            if value > 0
        )
        yield f"The nearest miss is trial {record.number}, over by {over}."


def front_rows(summary: Summary) -> list[tuple[str, ...]]:
    return [_front_row(one, summary) for one in summary.front]


FRONT_COLUMNS = ("trial", "decode tok/s", "prefill", "request", "mean KL", "top-1", "", "placement")


def _front_row(one: Remeasured, summary: Summary) -> tuple[str, ...]:
    quality = one.record.metrics.quality
    placement = one.record.placement
    assert placement is not None
    marks = ["best"] if one is summary.best else []
    marks += [] if one.survives else ["did not survive"]
    return (
        str(one.record.number),
        f"{one.decode_tok_per_s:.4g}",
        format_seconds(one.prefill_latency_s),
        format_seconds(one.request_s(summary.workload)),
        f"{quality.mean_kl:.3g}" if quality else "-",
        f"{quality.top1_agreement:.1%}" if quality else "-",
        ", ".join(marks),
        f"{describe_placement(placement)}; {_settings(one.record)}",
    )


def _settings(record: TrialRecord) -> str:
    settings = record.settings
    assert settings is not None
    threads = f"{settings.num_threads} thread{'s' if settings.num_threads != 1 else ''}"
    own = f", batch {settings.batch}, flash {settings.flash_attn}" if settings.batch else ""
    return f"{threads}, chunk {settings.prefill_chunk}, KV {settings.kv_type}{own}"


def _front(summary: Summary) -> Table:
    measured_again = any(one.n for one in summary.front)
    sentence = (
        "Figures are means of measurements made again at the end, in turn."
        if measured_again
        else "Figures are those of the search."
    )
    return Table(FRONT, (sentence,), FRONT_COLUMNS, tuple(front_rows(summary)))


def _memory(best: Remeasured) -> Table:
    by_device = best.record.metrics.bytes_by_device
    return Table(
        "Memory of the best",
        (),
        ("device", "weights", "KV cache", "workspace", "peak", "predicted peak"),
        tuple(
            (
                name,
                *(format_bytes(n) for n in (b.weights, b.kv_cache, b.workspace, b.peak)),
                format_bytes(best.record.predicted_bytes.get(name, 0)),
            )
            for name, b in sorted(by_device.items())
        ),
    )


def _obvious(summary: Summary) -> Table:
    obvious = [record for record in summary.records if record.is_obvious]
    measured = best_of([record for record in obvious if record.measured], summary.workload)
    known = {record.key for record in measured}
    others = [record for record in obvious if record.key not in known]
    return Table(
        "Obvious placements",
        (),
        ("placement", "trial", "decode tok/s", "prefill", "request"),
        tuple(_obvious_row(record, summary) for record in [*measured, *others]),
    )


def _obvious_row(record: TrialRecord, summary: Summary) -> tuple[str, ...]:
    head = record.origin.removeprefix("obvious: "), str(record.number)
    if not record.measured:
        return *head, "-", "-", record.status.replace("_", " ") or "waiting"
    metrics = record.metrics
    return (
        *head,
        f"{metrics.decode_tok_per_s.median:.4g}",
        format_seconds(metrics.prefill_latency_s.median),
        format_seconds(request_s(record, summary.workload)),
    )


def _predictions(summary: Summary) -> Iterator[Table]:
    """Predicted against measured, where anything but the model itself was measured."""
    if summary.basis == "predicted" and not summary.audit:
        return
    said = tuple(sentences(summary.records, summary.learned, summary.audit))
    if said:
        columns = ("kind of cost", "decode, times predicted", "prefill, times predicted")
        yield Table("Predicted against measured", said, columns, tuple(factors(summary.learned)))


def _conditions(summary: Summary) -> Table:
    counts = ", ".join(
        f"{count} {status.replace('_', ' ')}" for status, count in sorted(summary.counts.items())
    )
    noise = summary.noise
    sentences = [
        f"Trials: {counts or 'none'}. The search ended because {summary.ended}.",
        f"Engine {summary.key['engine']} {summary.key['engine_version']}, "
        f"dtype {summary.key['dtype']}, autoplace {__version__}.",
    ]
    if noise.request:
        sentences.append(
            f"Noise of one measurement (standard deviation): decode {noise.decode:.1%}, "
            f"prefill {noise.prefill:.1%}, request {noise.request:.1%}."
        )
    if summary.drift is not None:
        sentences.append(
            f"Drift of the sentinel's decode rate over the search: {summary.drift:+.1%}."
        )
    return Table("Conditions", tuple(sentences))


def _all_trials(summary: Summary) -> Table:
    return Table(
        "All trials",
        (),
        ("trial", "from", "ended", "decode tok/s", "prefill", "why", "parameters"),
        tuple(_trial_row(record) for record in summary.records if record.status),
    )


def _trial_row(record: TrialRecord) -> tuple[str, ...]:
    decode = f"{record.metrics.decode_tok_per_s.median:.4g}" if record.measured else "-"
    prefill = format_seconds(record.metrics.prefill_latency_s.median) if record.measured else "-"
    return (
        str(record.number),
        record.origin,
        record.status.replace("_", " "),
        decode,
        prefill,
        record.reason,
        ", ".join(f"{name}={value}" for name, value in record.params.items()),
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0;
         border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
figure { display: inline-block; margin: 1rem 1rem 1rem 0; }
figcaption { font-weight: 600; }
.wide { overflow-x: auto; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for table in sections %}
<h2>{{ table.title }}</h2>
{% for sentence in table.sentences %}<p>{{ sentence }}</p>
{% endfor %}
{% if table.rows %}<div class="wide"><table>
<tr>{% for column in table.columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>{% endif %}
{% if loop.first %}{% for caption, plot in plots %}
<figure><figcaption>{{ caption }}</figcaption>{{ plot | safe }}</figure>
{% endfor %}{% endif %}
{% endfor %}
</body>
</html>
"""
