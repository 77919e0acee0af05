"""The comment block above a rule file's body: what made it, for what, and what it was worth.

The lines for people say the same as two lines for programs: `settings`, which `bench` reads back,
and `record`, which holds everything else. No path and no host name stands in a header.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from autoplace import __version__
from autoplace.errors import AutoplaceError
from autoplace.placement.settings import ALL_KV_TYPES, RunSettings
from autoplace.units import format_bytes

FORMAT = 1
BASES = ("measured", "emulated", "predicted")
_TITLE = "# autoplace rule file"
_SETTINGS = "# settings: "
_RECORD = "# record: "
_END = "# ----"


@dataclass(frozen=True)
class Figure:
    """Median of repeats, with the extremes."""

    median: float
    low: float
    high: float
    n: int = 1


@dataclass(frozen=True)
class Header:
    """All that a rule file says of itself besides its rules."""

    engine: str
    """The engine that the body is written for."""
    model: str
    fingerprint: str
    hardware: str
    basis: str
    """`measured`, `emulated` or `predicted`: where the figures come from."""
    settings: RunSettings
    workload: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    context_tokens: int = 0
    tool_version: str = __version__
    body_sha256: str = ""
    """Filled in when the file is rendered."""
    measured_with: str = ""
    """The engine that gave the figures, where it is another one than `engine`."""
    predicted_bytes: Mapping[str, int] = field(default_factory=dict)
    measured_bytes: Mapping[str, int] = field(default_factory=dict)
    decode_tok_per_s: Figure | None = None
    prefill_latency_s: Figure | None = None
    mean_kl: float | None = None
    top1_agreement: float | None = None
    quality_positions: int = 0
    why: str = ""
    """Why this placement was chosen."""
    gain: str = ""
    """Against the best obvious placement, with its noise."""
    launch: tuple[str, ...] = ()
    """Command lines that run the file; `FILE` stands for its path."""

    def __post_init__(self) -> None:
        assert self.basis in BASES, self.basis


def sha256_of(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def render_file(header: Header, body: str) -> str:
    """Header and body as one text; the header gets the body's sha256."""
    return render_header(replace(header, body_sha256=sha256_of(body))) + body


def render_header(header: Header) -> str:
    """The comment lines, ending with the line that separates them from the body."""
    lines = [f"{_TITLE}, format {FORMAT}"]
    lines += [_comment(f"{name}: {text}") for name, text in _for_people(header) if text]
    lines += [_comment(f"launch: {line}") for line in header.launch]
    record = {
        spec.name: _plain(getattr(header, spec.name))
        for spec in fields(header)
        if spec.name != "settings"
    }
    lines.append(_SETTINGS + _json(header.settings.record()))
    lines.append(_RECORD + _json({"format": FORMAT, **record}))
    lines.append(_END)
    return "\n".join(lines) + "\n"


def _for_people(header: Header) -> list[tuple[str, str]]:
    engine = header.engine
    if header.measured_with and header.measured_with != engine:
        engine = f"measured with {header.measured_with}, planned for {engine}"
    return [
        ("made by", f"autoplace {header.tool_version}"),
        ("model", f"{header.model} (fingerprint {header.fingerprint})"),
        ("hardware", header.hardware),
        ("engine", engine),
        ("figures are", header.basis),
        ("workload", _workload(header)),
        ("decode", _figure(header.decode_tok_per_s, "tokens/s")),
        ("prefill", _figure(header.prefill_latency_s, "s")),
        ("quality", _quality(header)),
        ("bytes predicted", _bytes(header.predicted_bytes)),
        ("bytes measured", _bytes(header.measured_bytes)),
        ("chosen because", header.why),
        ("gain", header.gain),
        ("body sha256", header.body_sha256),
    ]


def _comment(text: str) -> str:
    """One line, whatever the text holds."""
    return "# " + " ".join(text.split())


def _workload(header: Header) -> str:
    if not header.workload:
        return ""
    return (
        f"{header.workload}: prompt {header.prompt_tokens}, output {header.output_tokens}, "
        f"context {header.context_tokens} tokens"
    )


def _figure(figure: Figure | None, unit: str) -> str:
    if figure is None:
        return ""
    return (
        f"{figure.median:.4g} {unit} ({figure.low:.4g} to {figure.high:.4g}, "
        f"{figure.n} repeat{'s' if figure.n != 1 else ''})"
    )


def _quality(header: Header) -> str:
    if header.mean_kl is None or header.top1_agreement is None:
        return ""
    return (
        f"mean KL {header.mean_kl:.4g} nats, top-1 agreement {header.top1_agreement:.1%} "
        f"over {header.quality_positions} positions"
    )


def _bytes(by_device: Mapping[str, int]) -> str:
    return ", ".join(
        f"{device} {n_bytes} ({format_bytes(n_bytes)})" for device, n_bytes in by_device.items()
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Figure):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else value


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(", ", ": "), ensure_ascii=True)


def split_header(text: str, *, source: str) -> tuple[Header | None, str]:
    """Header and body. None where the file is not one of ours; then the body is the whole text.

    Raises `AutoplaceError` if the file says it is ours but its header cannot be read. Whether the
    body still is what the header was made for is `Header.body_sha256 == sha256_of(body)`.
    """
    if not text.startswith(_TITLE):
        return None, text
    head, separator, body = text.partition(f"\n{_END}\n")
    if not separator:
        raise AutoplaceError(f"{source}: the header has no end: expected a line {_END!r}")
    return _parse_header(head, source=source), body


def _parse_header(head: str, *, source: str) -> Header:
    settings = _json_line(head, _SETTINGS, source=source)
    record = _json_line(head, _RECORD, source=source)
    if record.pop("format", None) != FORMAT:
        raise AutoplaceError(f"{source}: the header is not of format {FORMAT}, which is read here")
    try:
        header = Header(settings=_settings(settings), **_typed(record))
    except (TypeError, ValueError, AssertionError) as error:
        raise AutoplaceError(f"{source}: the header's record cannot be read: {error}") from error
    return header


def _json_line(head: str, prefix: str, *, source: str) -> dict[str, Any]:
    name = prefix.strip("# :")
    lines = [line for line in head.splitlines() if line.startswith(prefix)]
    if len(lines) != 1:
        raise AutoplaceError(f"{source}: the header needs one line {name!r}, but has {len(lines)}")
    try:
        value = json.loads(lines[0].removeprefix(prefix))
    except (ValueError, RecursionError) as error:
        raise AutoplaceError(f"{source}: the header's {name!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise AutoplaceError(f"{source}: the header's {name!r} is no JSON object")
    return value


def _settings(values: Mapping[str, Any]) -> RunSettings:
    settings = RunSettings(**values)
    for name in ("num_threads", "prefill_chunk"):
        number = getattr(settings, name)
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} must be a positive integer, but got {number!r}")
    if settings.kv_type not in ALL_KV_TYPES:
        raise ValueError(
            f"kv_type must be one of {', '.join(ALL_KV_TYPES)}, but got {settings.kv_type!r}"
        )
    return settings


_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("prompt_tokens", "output_tokens", "context_tokens"), (int,)),
    "quality_positions": (int,),
    **dict.fromkeys(("predicted_bytes", "measured_bytes"), (dict,)),
    **dict.fromkeys(("decode_tok_per_s", "prefill_latency_s"), (dict, type(None))),
    **dict.fromkeys(("mean_kl", "top1_agreement"), (float, int, type(None))),
    "launch": (list,),
}


def _read_figure(name: str, value: Any) -> Figure:
    if not all(type(number) in (int, float) for number in value.values()):
        raise TypeError(f"{name} must hold numbers")
    return Figure(**value)


def _holds_counts(value: Any) -> bool:
    return all(type(number) is int for number in value.values())


def _typed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record's values in the types of `Header`. Raises TypeError or ValueError."""
    typed = {name: _typed_value(name, value) for name, value in record.items()}
    if typed.get("basis") not in BASES:
        raise ValueError(f"basis must be one of {', '.join(BASES)}, but got {typed.get('basis')!r}")
    return typed


def _typed_value(name: str, value: Any) -> Any:
    right = isinstance(value, _KINDS.get(name, (str,)))
    if not right or isinstance(value, bool):
        raise TypeError(f"{name} must not be {type(value).__name__}")
    if name == "launch":
        return tuple(str(line) for line in value)
    if name.endswith("_bytes") and not _holds_counts(value):
        raise TypeError(f"{name} must map devices to bytes")
    if isinstance(value, dict) and not name.endswith("_bytes"):
        return _read_figure(name, value)
    return value
