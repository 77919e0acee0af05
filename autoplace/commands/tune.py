"""`tune`: searches for the best placement, and goes on where an earlier call stopped."""

from dataclasses import replace
from pathlib import Path

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.llama_cpp.tools import find_tools
from autoplace.bench.metrics import Basis
from autoplace.commands.model_source import describe_model, model_file
from autoplace.commands.output import answer_console, print_json, progress_console, table
from autoplace.config import EngineConfig, ReportConfig, TuneConfig
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import parse_args
from autoplace.hardware.fingerprint import fingerprint
from autoplace.hardware.machine import Machine
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.calibration import Calibration, save_calibration
from autoplace.predict.calibration_store import calibration_path, find_calibration
from autoplace.rules.lint import refuse_unrunnable
from autoplace.rules.match import assign
from autoplace.rules.read import load_rules
from autoplace.rules.read_back import read_back
from autoplace.tuner.beside import COLUMNS, Tuned, measure_in_turn, sentence
from autoplace.tuner.beside import markdown as beside_markdown
from autoplace.tuner.beside import rows as beside_rows
from autoplace.tuner.candidate import Problem
from autoplace.tuner.first_placements import UserRules
from autoplace.tuner.llama_cpp import LlamaCppStudy
from autoplace.tuner.runner import Runner
from autoplace.tuner.sampler import SamplerSettings
from autoplace.tuner.search import SearchSettings
from autoplace.tuner.session import Result, Session, tune
from autoplace.tuner.table import print_summary, summary_json

INTERRUPTED = 130
LLAMA_CPP = "llama.cpp"
MEASURED_ENGINES = ("builtin", LLAMA_CPP)


def run(config: TuneConfig) -> int:
    """0 if a placement was found, 130 if interrupted; nothing feasible raises (1)."""
    if config.beside is not None:
        return _run_beside(config, config.beside)
    result = _tuned(config)[1]
    if config.output == "json":
        print_json("tune", summary_json(result.summary, result.published))
    else:
        print_summary(result.summary, result.published, answer_console())
    return INTERRUPTED if result.interrupted else 0


def _tuned(config: TuneConfig) -> tuple[Problem, Result]:
    problem = problem_of(config, config.kv_type)
    session = Session(
        storage_path=config.storage.path,
        busy_timeout_s=config.storage.busy_timeout_s,
        study_dir=config.study_dir,
        search=SearchSettings(
            n_trials=config.n_trials,
            timeout_s=config.timeout_s,
            sampler=_sampler(config),
            prune=config.prune,
            max_kl=config.max_kl,
            audit_prunes=config.audit_prunes,
        ),
        user_rules=_user_rules(config.rules, problem) if config.rules else None,
    )
    if not config.measure.predicted:
        calibration = find_calibration(
            config.machine, config.engine.calibrated_as, config.calibration
        )
        problem = problem.calibrated(calibration)
    result = tune(problem, session, lambda: _runner(config, problem.spec))
    if not config.measure.predicted and result.learned is not None:
        _keep(result.learned, config)
    return problem, result


def _run_beside(config: TuneConfig, other: str) -> int:
    """Both studies, then the best of each in turn; written beside the first study's folder."""
    results = []
    for engine in (config.engine, EngineConfig(other, config.engine.dtype, "auto")):
        problem, result = _tuned(replace(config, engine=engine))
        if result.interrupted:
            return INTERRUPTED
        results.append((problem, result))
    runner = _runner(config, results[0][0].spec)
    try:
        studies = measure_in_turn(
            [Tuned(problem, result.summary) for problem, result in results],
            runner,
            on_measure=lambda engine: progress_console().print(f"measuring {engine} in turn"),
        )
    finally:
        runner.close()
    path = results[0][1].published.folder / f"beside-{other}.md"
    path.write_text(beside_markdown(studies), encoding="utf-8")
    if config.output == "json":
        documents = [summary_json(result.summary, result.published) for _, result in results]
        print_json("tune", {"engines": documents, "compared": sentence(*studies)})
        return 0
    for _, result in results:
        print_summary(result.summary, result.published, answer_console())
    rows = table("measured in turn", *COLUMNS)
    for row in beside_rows(studies):
        rows.add_row(*row)
    answer_console().print(rows)
    answer_console().print(sentence(*studies), soft_wrap=True)
    answer_console().print(str(path), soft_wrap=True)
    return 0


def _keep(learned: Calibration, config: TuneConfig) -> None:
    """What the study taught, for the next one on this machine."""
    engine = config.engine.calibrated_as
    own = replace(learned, machine=fingerprint(config.machine), engine=engine)
    save_calibration(own, calibration_path(config.machine, engine))


def problem_of(config: TuneConfig | ReportConfig, kv_type: str) -> Problem:
    """What is tuned. A preset's file is written to the cache where trials will load it."""
    predicted = config.measure.predicted
    if not predicted and config.engine.name not in MEASURED_ENGINES:
        raise AutoplaceError(
            f"engine={config.engine.name} cannot be measured here, only "
            f"{' and '.join(MEASURED_ENGINES)}; plan it, or search with measure=predicted"
        )
    if predicted and config.engine.name == LLAMA_CPP:
        raise AutoplaceError("measure=predicted plays engines with rule files; plan llama.cpp")
    if predicted or isinstance(config, ReportConfig):
        spec, path = describe_model(config.model, config.workload), None
    else:
        path = model_file(config.model)
        spec = describe_model(config.model, config.workload)
    return Problem(
        space=SearchSpace(
            spec,
            config.machine,
            config.workload,
            config.engine.name,
            kv_types=(kv_type,),
        ),
        model_path=str(path or ""),
        dtype=config.engine.dtype,
        cuda_graphs=config.engine.cuda_graphs,
        interleave=config.engine.interleave,
        basis=_basis(config.machine, predicted=predicted),
        measure=config.measure.settings,
        llama_cpp=_llama_cpp_of(config, spec, path),
    )


def _llama_cpp_of(
    config: TuneConfig | ReportConfig, spec: ModelSpec, path: Path | None
) -> LlamaCppStudy | None:
    if config.engine.name != LLAMA_CPP or isinstance(config, ReportConfig) or path is None:
        return None
    return llama_cpp_study(config, spec, path)


def llama_cpp_study(config: TuneConfig, spec: ModelSpec, path: Path) -> LlamaCppStudy:
    """llama.cpp as it is installed here, and what the user gives. Raise `AutoplaceError`."""
    if config.max_kl is not None:
        raise AutoplaceError("max_kl guards builtin's trials: llama.cpp's logits are not compared")
    if config.rules is not None:
        raise AutoplaceError('engine=llama.cpp takes your line as engine.args="…", not rules')
    tools = find_tools(config.engine.binaries, tool=config.engine.tool)
    tools.require_devices(config.machine)
    progress_console().print(f"running llama.cpp by {tools.describe()}")
    study = LlamaCppStudy(
        spec,
        config.machine,
        config.workload,
        tools,
        str(path),
        own=parse_args(config.engine.args) if config.engine.args else None,
        keep=config.engine.keep,
    )
    study.notes.extend([*study.check(), *_of_other_cache(config.kv_type)])
    for warning in study.notes:
        progress_console().print(f"warning: {warning}", soft_wrap=True)
    return study


def _of_other_cache(kv_type: str) -> list[str]:
    """llama.cpp's own ways stay as they are."""
    if kv_type == "f16":
        return []
    return [
        f"the cache of the trials is {kv_type}, that of llama.cpp's own ways f16: by how much "
        "answers differ is not measured"
    ]


def _basis(machine: Machine, *, predicted: bool) -> Basis:
    return Basis.PREDICTED if predicted else Basis.of(machine)


def _sampler(config: TuneConfig) -> SamplerSettings:
    return SamplerSettings(
        name=config.sampler.name,
        seed=config.sampler.seed,
        n_startup_trials=config.sampler.n_startup_trials,
        population_size=config.sampler.population_size,
    )


def _user_rules(path: Path, problem: Problem) -> UserRules:
    """The user's file as the first obvious placement. What cannot run is refused here."""
    rules = load_rules(path)
    assignment = assign(rules.rules, problem.spec, engine=problem.space.engine)
    if problem.space.engine == "builtin":
        refuse_unrunnable(assignment, problem.spec, problem.machine)
    settings = rules.header.settings if rules.header else problem.space.default_settings
    settings = RunSettings(
        num_threads=min(settings.num_threads, problem.machine.num_cores),
        prefill_chunk=min(settings.prefill_chunk, problem.workload.prompt_tokens),
        kv_type=settings.kv_type,
    )
    return UserRules(read_back(assignment, problem.spec), settings, rules.body)


def _runner(config: TuneConfig, spec: ModelSpec) -> Runner:
    if config.measure.predicted:
        from autoplace.tuner.predicted_runner import PredictedRunner

        measure = config.measure
        return PredictedRunner(
            spec, bias=measure.bias, noise=measure.noise, seed=measure.settings.seed
        )
    if config.runner.name == "inline":
        from autoplace.tuner.inline_runner import InlineRunner

        return InlineRunner()
    if config.runner.name == "process":
        from autoplace.tuner.process_runner import ProcessRunner

        return ProcessRunner()
    from autoplace.tuner.ray_runner import RayRunner

    return RayRunner(address=config.runner.address, object_store_mib=config.runner.object_store_mib)
