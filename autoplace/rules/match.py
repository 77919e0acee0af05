"""Simulates KTransformers' walk over the module tree: which rule gets which module.

The walk is `gen_optimize_config` of KTransformers 0.2.1 to 0.3: depth first from the root, whose
name is empty; the first rule that matches a module wins; the name is searched, not matched whole;
`recursive: false` ends the walk below a match; what no rule matches stays as it is.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from autoplace.architectures.registry import expert_modules
from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.rules import vocabulary
from autoplace.rules.pattern import PatternError, compile_pattern, is_blind_to_experts
from autoplace.rules.rule import Rule

DEFAULT_DEVICE = "cuda:0"
"""Of KTransformers up to 0.3.0, for modules that no rule matches."""
TIME_LIMIT_S = 3.0
"""Of the processor, for one file; V3 with eight GPUs takes milliseconds."""


def assign(rules: Sequence[Rule], spec: ModelSpec, *, engine: str) -> Assignment:
    """What the rules mean for every module that the walk visits, in the order of the walk.

    A faulty file has a meaning too. Raises `AutoplaceError` only for a pattern that is no regex or
    takes too long.
    """
    matcher = Matcher.of(rules)
    modules = {entry.path: entry for entry in _walk(spec.modules, matcher, spec)}
    return Assignment(engine, modules)


def _walk(
    modules: Iterable[Module], matcher: "Matcher", spec: ModelSpec
) -> Iterator[ModuleAssignment]:
    """Visit modules in order, but none below a match that is not recursive."""
    pruned = None
    for module in modules:
        path = module.path
        if pruned is not None and path.startswith(pruned):
            continue
        index = matcher.first(path, module.class_name)
        yield matcher.assignment(path, index)
        if index is not None and not matcher.rules[index].recursive:
            pruned = f"{path}." if path else ""
        elif module.role is Role.EXPERTS:
            yield from _single_experts(module, spec, matcher)


@dataclass
class Matcher:
    """The rules, compiled, with those of a class found by the class of the module."""

    rules: Sequence[Rule]
    patterns: list["re.Pattern[str] | None"]
    candidates: dict[str, list[int]]
    deadline: float

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> "Matcher":
        deadline = time.thread_time() + TIME_LIMIT_S
        return cls(rules, [_compiled(rule) for rule in rules], {}, deadline)

    def first(self, path: str, class_name: str) -> int | None:
        """Index of the first rule that matches a module."""
        candidates = self.candidates.get(class_name)
        if candidates is None:
            candidates = self.candidates[class_name] = self._of_class(class_name)
        if time.thread_time() > self.deadline:
            raise AutoplaceError(
                f"the patterns of the rules take over {TIME_LIMIT_S:g} s to search; "
                "write them without repeats, as ^model\\.layers\\.(?:0|1)\\."
            )
        for index in candidates:
            pattern = self.patterns[index]
            if pattern is None or pattern.search(path) is not None:
                return index
        return None

    def matches(self, index: int, path: str, class_name: str) -> bool:
        """Whether a rule matches a module, earlier rules aside."""
        rule, pattern = self.rules[index], self.patterns[index]
        if rule.match_class is not None and not vocabulary.is_instance(
            class_name, rule.match_class
        ):
            return False
        return pattern is None or pattern.search(path) is not None

    def _of_class(self, class_name: str) -> list[int]:
        return [
            index
            for index, rule in enumerate(self.rules)
            if rule.match_class is None or vocabulary.is_instance(class_name, rule.match_class)
        ]

    def assignment(self, path: str, index: int | None) -> ModuleAssignment:
        if index is None:
            return ModuleAssignment(path, DEFAULT_DEVICE)
        rule = self.rules[index]
        defaults = vocabulary.defaults_of(rule.replace_class)
        return ModuleAssignment(
            path,
            device=_device(rule.kwargs.get("generate_device"), defaults.device),
            class_name=None if rule.replace_class == "default" else rule.replace_class,
            operator=_operator(rule, defaults.operator),
            kwargs=rule.kwargs,
            rule=index,
        )


def _compiled(rule: Rule) -> "re.Pattern[str] | None":
    if rule.name is None:
        return None
    try:
        return compile_pattern(rule.name)
    except PatternError as error:
        place = f"line {rule.line}: " if rule.line else ""
        raise AutoplaceError(f"{place}the pattern {rule.name!r}: {error}") from error


def _device(value: object, default: str) -> str:
    """A device as rules name it; plain `cuda` is the first GPU."""
    device = value if isinstance(value, str) else default
    return DEFAULT_DEVICE if device == "cuda" else device


def _operator(rule: Rule, default: str | None) -> str | None:
    if default is None:
        return None
    value = rule.kwargs.get("generate_op", default)
    return value if isinstance(value, str) else None


def _single_experts(
    experts: Module, spec: ModelSpec, matcher: Matcher
) -> Iterator[ModuleAssignment]:
    """The modules below a layer's experts, which a rule file visits unless it stops above them.

    One expert stands for all, unless some pattern could tell them apart: then each is asked.
    """
    modules = expert_modules(spec, experts)
    if not all(rule.name is None or is_blind_to_experts(rule.name) for rule in matcher.rules):
        yield from _walk(modules, matcher, spec)
        return
    assert spec.geometry.moe is not None
    first = f"{experts.path}.0"
    one = takewhile(lambda module: f"{module.path}.".startswith(f"{first}."), modules)
    shown = [(entry.path.removeprefix(first), entry) for entry in _walk(one, matcher, spec)]
    for number in range(spec.geometry.moe.num_experts):
        for below, entry in shown:
            path = f"{experts.path}.{number}{below}"
            yield ModuleAssignment(
                path, entry.device, entry.class_name, entry.operator, entry.kwargs, entry.rule
            )
