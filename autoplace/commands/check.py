"""`check`: what is wrong with a rule file, whether it fits the machine, and what would fix it."""

from pathlib import Path

from autoplace.architectures.spec import ModelSpec
from autoplace.catalog.engines import engine
from autoplace.commands.check_report import Answer, document, show
from autoplace.commands.fit import fit_of
from autoplace.commands.model_source import describe_model
from autoplace.commands.output import print_json
from autoplace.config import CheckConfig
from autoplace.errors import AutoplaceError
from autoplace.placement.breakdown import breakdown
from autoplace.placement.facts import facts
from autoplace.placement.remedies import Change, smallest_changes
from autoplace.placement.situation import Situation
from autoplace.rules.explain import explain
from autoplace.rules.families import is_served
from autoplace.rules.lint import Examined, examine
from autoplace.rules.read import read_rules, read_text
from autoplace.rules.subject import homes_of


def run(config: CheckConfig) -> int:
    """0 if nothing keeps the files from running; 1 for errors, or where one does not fit."""
    spec = describe_model(config.model, config.workload)
    answers = [_answer(config, spec, path) for path in config.paths]
    if config.output == "json":
        documents = [document(config, answer) for answer in answers]
        print_json("check", documents[0] if len(documents) == 1 else {"files": documents})
    else:
        for answer in answers:
            show(config, answer)
    return 0 if all(answer.is_good for answer in answers) else 1


def _answer(config: CheckConfig, spec: ModelSpec, path: Path) -> Answer:
    if engine(config.engine.name).uses_rules:
        return check_file(config, spec, path)
    from autoplace.commands.check_flags import check_flags

    return check_flags(config, spec, path)


def check_file(config: CheckConfig, spec: ModelSpec, path: Path) -> Answer:
    """Everything about one rule file; with `fix=` the mended file is written too."""
    rule_file = read_rules(read_text(path), source=str(path))
    examined = examine(rule_file, spec, engine=config.engine.name, machine=config.machine)
    if rule_file.is_unreadable:
        reason = "nothing of the file could be read"
        return Answer(path.name, spec.name, examined.findings, None, reason)
    explanations = (
        explain(
            config.explain,
            examined.assignment,
            spec,
            rule_file.rules,
            dtype_bytes=config.engine.dtype_bytes,
        )
        if config.explain
        else []
    )
    situation = situation_of(config, spec, examined)
    not_mended = _fix(config, examined, situation)
    try:
        plan = situation.plan
    except AutoplaceError as problem:
        return Answer(path.name, spec.name, examined.findings, None, str(problem))
    return Answer(
        name=path.name,
        model=spec.name,
        findings=examined.findings,
        fit=fit_of(plan, config.machine),
        facts=[*not_mended, *facts(situation)],
        changes=_changes(situation),
        shares=breakdown(
            spec,
            examined.assignment,
            dtype_bytes=config.engine.dtype_bytes,
            numa_copies=situation.numa_copies,
        ),
        explanations=explanations,
    )


def _changes(situation: Situation) -> list[Change]:
    """None where experts stay plain: the findings say why, and `fix=` mends that first."""
    return [] if situation.plain_experts or not situation.over else smallest_changes(situation)


def _fix(config: CheckConfig, examined: Examined, situation: Situation) -> list[str]:
    """Write the corrected file if one is asked for; why not, where the author has to decide."""
    if config.fix is None:
        return []
    from autoplace.rules.fix import CannotMendError, fix

    try:
        fix(config.fix, examined, situation)
    except CannotMendError as problem:
        return [str(problem)]
    return []


def situation_of(config: CheckConfig, spec: ModelSpec, examined: Examined) -> Situation:
    """KTransformers keeps the experts once a NUMA node where it is built for that."""
    header = examined.file.header.settings if examined.file.header else None
    is_builtin = config.engine.name == "builtin"
    copies = config.numa_copies or (1 if is_builtin else config.machine.numa_nodes)
    return Situation(
        spec,
        examined.assignment,
        homes_of(examined.assignment, spec),
        config.machine,
        config.workload,
        config.settings.resolve(config.machine, header),
        dtype_bytes=config.engine.dtype_bytes,
        numa_copies=copies,
        experts_on_host_only=is_served(spec, engine=config.engine.name),
    )
