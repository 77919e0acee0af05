"""Checks: rules that are the first match of no module, and what takes their modules."""

from collections import Counter
from dataclasses import replace

from autoplace.rules.finding import Severity, ranges
from autoplace.rules.match import Matcher
from autoplace.rules.subject import Subject

WARNING = Severity.WARNING


def _check_dead_rules(subject: Subject) -> None:
    used = {entry.rule for entry in subject.assignment.modules.values()}
    dead = [
        index
        for index in range(len(subject.rules))
        if index not in used and index not in subject.explained_rules
    ]
    if not dead:
        return
    matcher = Matcher.of(subject.rules)
    takers = {index: _takers(subject, matcher, index) for index in dead}
    shadowed = [index for index in dead if takers[index]]
    if shadowed:
        earlier = {subject.number(rule) for index in shadowed for rule in takers[index]}
        subject.report(
            WARNING,
            "shadowed-rule",
            f"a dead rule: all modules that it would match are taken by an earlier rule "
            f"(rule{'s' if len(earlier) > 1 else ''} {ranges(earlier)})",
            rules=shadowed,
            effect="the first match wins, so what the rule says is never done",
            remedy="move it before the other, narrow the other's pattern, or delete it",
        )
    for index in dead:
        if not takers[index]:
            subject.report(
                WARNING,
                "dead-rule",
                f"a dead rule: it matches no module of {subject.spec.name}{_why(subject, index)}",
                rules=[index],
                effect="what it is meant for is left to later rules, or to none",
                remedy="mend its pattern or class, or delete it",
            )


def _takers(subject: Subject, matcher: Matcher, index: int) -> Counter[int]:
    """Earlier rules that take the modules which a rule would match, and how many each."""
    found: Counter[int] = Counter()
    for module in subject.spec.modules:
        if matcher.matches(index, module.path, module.class_name):
            taker = subject.assignment.rule_of(module.path)
            if taker is not None:
                found[taker] += 1
    return found


def _why(subject: Subject, index: int) -> str:
    """Whether it is the class or the pattern alone that matches nothing."""
    rule = subject.rules[index]
    if rule.match_class is None:
        return ""
    by_class = Matcher.of([replace(rule, name=None)])
    modules = subject.spec.modules
    if not any(by_class.matches(0, module.path, module.class_name) for module in modules):
        return f": it has no {rule.match_class.rpartition('.')[2]}"
    return ""


CHECKS = (_check_dead_rules,)
