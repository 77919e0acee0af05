"""Puts a rule file in place, after it was read again and found to be what it should be."""

import os
import tempfile
from pathlib import Path

from autoplace.architectures.spec import ModelSpec
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment
from autoplace.placement.placement import Placement
from autoplace.rules.compile import compile_rules
from autoplace.rules.header import Header, render_file, sha256_of
from autoplace.rules.match import assign
from autoplace.rules.read import parse_rules, read_text
from autoplace.rules.read_back import read_back
from autoplace.rules.write import dump_rules


def rule_body(placement: Placement, spec: ModelSpec) -> str:
    """The body of the placement's rule file: what is loaded, measured and exported."""
    return dump_rules(compile_rules(placement, spec))


def export_rules(
    path: Path, placement: Placement, spec: ModelSpec, header: Header, *, body: str | None = None
) -> str:
    """Write header and body to `path` in one step and return the text.

    `body` is what was measured; without it the placement is compiled. The text goes into a file
    beside `path`, is read again and compared (bytes, sha256, assignment, placement), and only then
    takes the place of `path`. Raises `AutoplaceError` if it cannot be written or differs.
    """
    body = rule_body(placement, spec) if body is None else body
    text = render_file(header, body)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise AutoplaceError(f"cannot write the rule file {path}: {error.strerror}") from error
    draft = Path(name)
    try:
        _write(draft, handle, text)
        _check(read_text(draft), placement, spec, header, body, source=path.name)
        os.replace(draft, path)
    except OSError as error:
        raise AutoplaceError(f"cannot write the rule file {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return text


def _write(draft: Path, handle: int, text: str) -> None:
    with open(handle, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.chmod(0o644)


def _check(
    text: str, placement: Placement, spec: ModelSpec, header: Header, body: str, *, source: str
) -> None:
    """Compare what was read again with what was meant."""
    found = parse_rules(text, source=source)
    assert found.body == body
    assert found.header is not None
    assert found.header.body_sha256 == sha256_of(body)
    assert found.header.settings == header.settings
    assignment = assign(found.rules, spec, engine=placement.engine)
    same = read_back(assignment, spec) == placement
    compiled = compile_rules(placement, spec)
    if dump_rules(compiled) == body:
        meant = assign(compiled, spec, engine=placement.engine)
        same = same and _effects(assignment) == _effects(meant)
    if not same:
        raise AutoplaceError(f"{source}: the rules do not mean the placement that they are for")


def _effects(assignment: Assignment) -> list[tuple[object, ...]]:
    """What an assignment does, whichever rule says it."""
    return [
        (path, entry.device, entry.class_name, entry.operator, entry.kwargs)
        for path, entry in assignment.modules.items()
    ]
