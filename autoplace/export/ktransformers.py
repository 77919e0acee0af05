"""A placement as another engine's rule file: refused where it cannot be said, or does not fit."""

from dataclasses import replace

from autoplace.architectures.spec import ModelSpec
from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Machine
from autoplace.placement.memory import plan_memory
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.rules.compile import compile_rules
from autoplace.rules.match import assign
from autoplace.rules.write import dump_rules
from autoplace.workload import Workload


def rule_body_for(
    engine: str,
    placement: Placement,
    spec: ModelSpec,
    machine: Machine,
    *,
    workload: Workload,
    settings: RunSettings,
) -> str:
    """The body of a rule file that means the placement in that engine.

    Raises `AutoplaceError` with the reason where the engine's rules cannot say it, and
    `DoesNotFitError` with the bytes where it does not fit under the engine's memory profile.
    """
    moved = replace(placement, engine=engine)
    rules = compile_rules(moved, spec)
    assignment = assign(rules, spec, engine=engine)
    try:
        plan_memory(spec, assignment, workload=workload, settings=settings).check(machine)
    except AutoplaceError as problem:
        raise type(problem)(f"{engine} cannot hold this placement: {problem}") from problem
    return dump_rules(rules)
