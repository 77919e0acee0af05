"""A placement made ready to be tried: its rule file, and the memory it is predicted to need."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Basis
from autoplace.bench.request import LlamaCppRun, MeasureSettings, TrialRequest
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment
from autoplace.placement.expand import Expander
from autoplace.placement.memory import MemoryPlan, plan_memory
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.calibration import Calibration
from autoplace.predict.latency import LatencyModel
from autoplace.rules.export import rule_body
from autoplace.rules.match import assign
from autoplace.rules.read import parse_rules
from autoplace.tuner.llama_cpp import LlamaCppStudy, line_of
from autoplace.workload import Workload

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Problem:
    """What is tuned: everything that all trials of a study have in common."""

    space: SearchSpace
    model_path: str
    dtype: str
    basis: Basis
    cuda_graphs: str = "auto"
    interleave: str = "auto"
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    calibration: Calibration = field(default_factory=Calibration)
    """What predictions start from."""
    llama_cpp: LlamaCppStudy | None = None
    """For engine `llama.cpp`: lines of arguments take the place of rule files."""

    def calibrated(self, calibration: Calibration) -> "Problem":
        """The same problem, predicted from another start."""
        return replace(self, calibration=calibration)

    @cached_property
    def latency_model(self) -> LatencyModel:
        return LatencyModel(
            self.spec,
            self.machine,
            self.workload,
            dtype_bytes=self.dtype_bytes,
            engine=self.space.engine,
            calibration=self.calibration,
        )

    @property
    def spec(self) -> ModelSpec:
        return self.space.spec

    @property
    def machine(self) -> Machine:
        return self.space.machine

    @property
    def workload(self) -> Workload:
        return self.space.workload

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Candidate:
    """One placement with its settings, as it would be loaded."""

    placement: Placement
    settings: RunSettings
    rules: str
    """The body of the rule file; llama.cpp's line of arguments."""
    plan: MemoryPlan
    args: LlamaCppArgs | None = None
    parted: str = ""
    """llama.cpp's line where it says more than the placement and the settings."""

    @cached_property
    def key(self) -> str:
        """Equal for equal placements with equal settings."""
        return candidate_key(self.placement, self.settings, self.parted)

    def cheap_probe(self, problem: Problem) -> TrialRequest:
        """Whether it fits: load, the longest prompt, one token."""
        return _longest_prompt(self.request(problem))

    def request(self, problem: Problem) -> TrialRequest:
        return TrialRequest(
            model_path=problem.model_path,
            rules=self.rules,
            engine=problem.space.engine,
            machine=problem.machine,
            workload=problem.workload,
            settings=self.settings,
            dtype=problem.dtype,
            cuda_graphs=problem.cuda_graphs,
            interleave=problem.interleave,
            measure=problem.measure,
            llama_cpp=self._llama_cpp_run(problem),
        )

    def _llama_cpp_run(self, problem: Problem) -> LlamaCppRun | None:
        if problem.llama_cpp is None or self.args is None:
            return None
        predicted = {name: memory.peak for name, memory in self.plan.by_device.items()}
        return LlamaCppRun(self.args, problem.llama_cpp.tools, predicted)


def _longest_prompt(request: TrialRequest) -> TrialRequest:
    """The same placement on as long a prompt as its cache has room for, and one token."""
    workload = request.workload
    longest = Workload(workload.name, workload.context_tokens - 1, 1, workload.context_tokens)
    quick = replace(request.measure, min_repeats=1, max_repeats=1, quality=False)
    return replace(request, workload=longest, measure=quick)


def candidate_key(placement: Placement, settings: RunSettings, parted: str = "") -> str:
    parts = [asdict(placement), settings.record(), *([parted] if parted else [])]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Preparer:
    """Compiles and plans placements of one problem, each once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._expander = Expander(problem.spec)
        self._known: dict[str, Candidate] = {}

    def prepare(
        self, placement: Placement, settings: RunSettings, *, rules: str | None = None
    ) -> Candidate:
        """The candidate; `rules` is the body of the user's own file, compiled if it is None.

        The memory of the user's file is planned from its text, since that is what will be loaded.
        """
        llama_cpp = self._problem.llama_cpp
        parted = llama_cpp.parted(rules) if llama_cpp is not None else ""
        key = candidate_key(placement, settings, parted)
        if key not in self._known and llama_cpp is not None:
            self._known[key] = _of_llama_cpp(llama_cpp, placement, settings, rules)
        if key not in self._known:
            spec = self._problem.spec
            if rules is None:
                body = rule_body(placement, spec)
                assignment = self._expander.expand(placement)
            else:
                body = rules
                parsed = parse_rules(rules, source="the rule file").rules
                assignment = assign(parsed, spec, engine=self._problem.space.engine)
            plan = self._plan(assignment, settings)
            self._known[key] = Candidate(placement, settings, body, plan)
        return self._known[key]

    def overrun_bytes(self, placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        """Bytes over the budget per device, negative where there is room."""
        llama_cpp = self._problem.llama_cpp
        if llama_cpp is not None:
            return llama_cpp.overrun_bytes(placement, settings)
        plan = self._plan(self._expander.expand(placement), settings)
        return plan.overrun_bytes(self._problem.machine)

    def fits(self, placement: Placement, settings: RunSettings) -> bool:
        return max(self.overrun_bytes(placement, settings).values()) <= 0

    def _plan(self, assignment: Assignment, settings: RunSettings) -> MemoryPlan:
        return plan_memory(
            self._problem.spec,
            assignment,
            workload=self._problem.workload,
            settings=settings,
            dtype_bytes=self._problem.dtype_bytes,
        )


def _of_llama_cpp(
    study: LlamaCppStudy, placement: Placement, settings: RunSettings, line: str | None
) -> Candidate:
    """The line as it is, or that of the placement; the user's kept overrides change where it is."""
    args = study.args(placement, settings, line)
    where = placement if line is not None else study.placed(placement, args)
    text = line if line is not None else line_of(args)
    parted = study.parted(text if line is not None or study.kept else None)
    return Candidate(where, settings, text, study.plan(args), args, parted)
