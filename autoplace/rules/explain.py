"""Why a module is where it is: the rule that matched, those that would have, and what follows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoplace.architectures.spec import ModelSpec, Module
from autoplace.catalog.engines import engine
from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.placement.module_bytes import module_bytes
from autoplace.rules.finding import ranges
from autoplace.rules.match import DEFAULT_DEVICE, Matcher
from autoplace.rules.pattern import PatternError, compile_pattern
from autoplace.rules.rule import Rule
from autoplace.units import format_bytes

MOST = 200
"""Modules that one pattern explains."""


@dataclass(frozen=True)
class Explanation:
    """One module's way through the rules."""

    path: str
    rule: int | None
    """Number of the rule that matched."""
    line: int | None
    later: tuple[int, ...]
    """Numbers of later rules that would match it too."""
    device: str
    class_name: str | None
    operator: str | None
    n_bytes: int
    note: str = ""

    def __str__(self) -> str:
        by = f"rule {self.rule} (line {self.line})" if self.rule else "no rule matches"
        later = f"; rules {ranges(self.later)} would match later" if self.later else ""
        what = self.operator or (self.class_name or "default").rpartition(".")[2]
        size = f", {self.n_bytes} B ({format_bytes(self.n_bytes)})" if self.n_bytes else ""
        note = f"; {self.note}" if self.note else ""
        return f"{self.path or '(the root)'}: {by}{later} → {what} on {self.device}{size}{note}"


def explain(
    wanted: str,
    assignment: Assignment,
    spec: ModelSpec,
    rules: Sequence[Rule],
    *,
    dtype_bytes: int = 2,
) -> list[Explanation]:
    """A module by its exact path, or all that a pattern finds. Raises `AutoplaceError` for none."""
    modules = _modules(wanted, spec)
    matcher = Matcher.of(rules)
    scale_bytes = engine(assignment.engine).memory.marlin_scale_bytes
    sizes = module_bytes(spec, dtype_bytes=dtype_bytes, scale_bytes=scale_bytes)
    found = []
    for module in modules[:MOST]:
        entry = assignment.modules.get(module.path)
        size = sizes.of(module, entry).weights if module.tensors else 0
        found.append(_explanation(module, entry, size, matcher, rules, assignment))
    return found


def _explanation(
    module: Module,
    entry: ModuleAssignment | None,
    n_bytes: int,
    matcher: Matcher,
    rules: Sequence[Rule],
    assignment: Assignment,
) -> Explanation:
    first = entry.rule if entry is not None else None
    matching = [
        index
        for index in range(len(rules))
        if matcher.matches(index, module.path, module.class_name)
    ]
    return Explanation(
        module.path,
        rule=None if first is None else _number(rules, first),
        line=None if first is None else rules[first].line,
        later=tuple(_number(rules, index) for index in matching if index != first),
        device=entry.device if entry else DEFAULT_DEVICE,
        class_name=entry.class_name if entry else None,
        operator=entry.operator if entry else None,
        n_bytes=n_bytes,
        note="" if entry else _not_visited(module.path, assignment, rules),
    )


def _number(rules: Sequence[Rule], index: int) -> int:
    return rules[index].number or index + 1


def _not_visited(path: str, assignment: Assignment, rules: Sequence[Rule]) -> str:
    above = path
    while above:
        above = above.rpartition(".")[0]
        entry = assignment.modules.get(above)
        if entry is not None and entry.rule is not None and not rules[entry.rule].recursive:
            number = _number(rules, entry.rule)
            return f"never visited: rule {number} ends the walk at {above} (recursive: false)"
    return "never visited"


def _modules(wanted: str, spec: ModelSpec) -> list[Module]:
    if wanted in spec.by_path:
        return [spec.by_path[wanted]]
    try:
        pattern = compile_pattern(wanted)
    except PatternError as error:
        raise AutoplaceError(f"explain={wanted}: {error}") from error
    found = [module for module in spec.modules if pattern.search(module.path)]
    if not found:
        layer = re.sub(r"\.layers\.\d+\.", ".layers.0.", wanted)
        near = did_you_mean(layer, spec.by_path)
        hint = near if "did you mean" in near else "; names are as in model.layers.0.mlp.experts"
        raise AutoplaceError(f"explain={wanted} matches no module of {spec.name}{hint}")
    return found
