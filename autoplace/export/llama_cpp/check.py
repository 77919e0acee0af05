"""What is wrong with a line of llama.cpp arguments for a file: patterns, pairs, buffers."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.names import EXPERTS, gate_and_up
from autoplace.rules.finding import Finding, Severity, layers_text, merge
from autoplace.rules.pattern import PatternError, compile_pattern

_SAYS_NOTHING = "llama.cpp says nothing, and the tensors stay with their layer"
_IDLE = frozenset({"dead-override", "shadowed-override"})
"""What moves no tensor; llama.cpp's own `--fit` writes such, and parts gate and up."""


def check_overrides(
    args: LlamaCppArgs, names: Sequence[str], buffers: Mapping[str, str] | None = None
) -> list[Finding]:
    """Patterns against the tensors of the file, `names`: one that does not compile, that matches
    nothing, or whose tensors earlier ones take is an error; so is a buffer that is not among
    `buffers` (device → name). Parted gate and up run, but slowly: a warning."""
    findings: list[Finding] = []
    taken: dict[str, str] = {}
    for number, (pattern, buffer) in enumerate(args.overrides, start=1):
        try:
            compiled = compile_pattern(pattern)
        except PatternError as error:
            findings.append(_finding(number, "bad-pattern", f"-ot {pattern!r}: {error}"))
            continue
        found = {name for name in names if compiled.search(name)}
        what = f"-ot {pattern}={buffer}"
        if buffers is not None and buffer not in buffers.values():
            message = f"{what}: there is no such buffer, only {', '.join(buffers.values())}"
            findings.append(_finding(number, "unknown-buffer", message))
        if not found:
            message = f"{what} matches no tensor of the file"
            findings.append(_finding(number, "dead-override", message))
        elif found <= set(taken):
            message = f"{what}: earlier patterns take all its tensors"
            findings.append(_finding(number, "shadowed-override", message))
        for name in found:
            taken.setdefault(name, buffer)
    findings += _parted(taken, names)
    return findings


def warnings_of(
    args: LlamaCppArgs,
    names: Sequence[str],
    buffers: Mapping[str, str],
    *,
    source: str,
    is_exported: bool = False,
) -> list[str]:
    """What is doubtful, but runs. A user's own line may have patterns that move nothing; what was
    exported for a model may not.

    Raises `AutoplaceError` for the rest.
    """
    findings = check_overrides(args, names, buffers)
    for finding in findings:
        is_idle = finding.code in _IDLE and not is_exported
        if finding.severity is Severity.ERROR and not is_idle:
            raise AutoplaceError(f"{source}: {finding.message}")
    return [f"{source}: {finding.message}{_in_layers(finding)}" for finding in merge(findings)]


def _in_layers(finding: Finding) -> str:
    return f" in {layers_text(finding.layers)}" if finding.layers else ""


def live_overrides(
    overrides: Iterable[tuple[str, str]], names: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Those that decide where some tensor goes: the others match nothing, or only what earlier
    ones take."""
    left = set(names)
    live = []
    for pattern, buffer in overrides:
        found = {name for name in left if re.search(pattern, name)}
        live += [(pattern, buffer)] if found else []
        left -= found
    return tuple(live)


def _parted(taken: Mapping[str, str], names: Sequence[str]) -> Iterator[Finding]:
    """Gate and up on different devices: SwiGLU takes both, so one result moves at every token."""
    pairs: dict[str, dict[str, str]] = {}
    for name in names:
        half = gate_and_up(name)
        if half is not None:
            pairs.setdefault(half[0], {})[half[1]] = taken.get(name, "its layer's device")
    parted: dict[tuple[str, str, str], list[int]] = {}
    for pair, halves in pairs.items():
        if len(set(halves.values())) > 1:
            layer = int(pair.split(".")[1])
            kind = re.sub(r"blk\.\d+\.", "", pair)
            parted.setdefault((kind, halves["gate"], halves["up"]), []).append(layer)
    for (kind, gate, up), layers in parted.items():
        yield Finding(
            Severity.WARNING,
            "parted-gate-and-up",
            f"gate of {kind} is on {gate}, but up is on {up}",
            layers=tuple(sorted(set(layers))),
            effect="SwiGLU takes both: one of the results is copied at every token",
            remedy=rf"match both: ffn_(gate|up)_exps, or all of blk\.3\.{EXPERTS}",
        )


def _finding(number: int, code: str, message: str) -> Finding:
    return Finding(
        Severity.ERROR,
        code,
        message,
        rule=number,
        effect=_SAYS_NOTHING,
        remedy=rf"names are as in blk\.3\.{EXPERTS}",
    )
