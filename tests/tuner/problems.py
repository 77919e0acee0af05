"""A small model on small machines, and runners that end trials as a test says."""

from collections.abc import Callable, Sequence

import optuna
from optuna.trial import FrozenTrial

from autoplace.architectures.geometry import Geometry, Mla, Moe, Rope
from autoplace.architectures.registry import spec_from_geometry
from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Basis, Outcome
from autoplace.bench.request import MeasureSettings, TrialRequest
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.space import SearchSpace
from autoplace.tuner.candidate import Candidate, Problem
from autoplace.tuner.predicted_runner import PredictedRunner
from autoplace.tuner.runner import Runner
from autoplace.tuner.sampler import make_sampler
from autoplace.tuner.search import SearchSettings
from autoplace.tuner.study import StudyKey, open_study
from autoplace.units import GIB, MIB
from autoplace.workload import Workload

WORKLOAD = Workload("short", prompt_tokens=64, output_tokens=8, context_tokens=72)
GEOMETRY = Geometry(
    architecture="deepseek2",
    num_layers=4,
    num_dense_lead_layers=1,
    hidden=256,
    num_heads=4,
    dense_ffn=512,
    vocab=512,
    context_length=512,
    rms_eps=1e-6,
    attention=Mla(None, 128, 32, 32, 32),
    rope=Rope(theta=10000.0, dim=32, interleaved=True),
    moe=Moe(num_experts=8, top_k=2, expert_ffn=256, shared_ffn=256),
)
MEASURE = MeasureSettings(min_repeats=1, max_repeats=1, quality=False)


def small_spec() -> ModelSpec:
    return spec_from_geometry("small", GEOMETRY, quant="q8_0")


def small_machine(*gpu_mib: float, num_cores: int = 4) -> Machine:
    """A host of 4 GiB with emulated GPUs of so many MiB."""
    host = Device("cpu", "host", 4 * GIB, 0, 20e9, 2e11)
    gpus = tuple(
        Device(f"cuda:{i}", "emulated", int(mib * MIB), 0, 20e9, 2e11)
        for i, mib in enumerate(gpu_mib)
    )
    return Machine("small", (host, *gpus), emulated=bool(gpus), num_cores=num_cores)


def small_problem(*gpu_mib: float, num_cores: int = 4, basis: Basis = Basis.PREDICTED) -> Problem:
    space = SearchSpace(
        small_spec(), small_machine(*gpu_mib, num_cores=num_cores), WORKLOAD, "builtin"
    )
    return Problem(space, model_path="", dtype="bfloat16", basis=basis, measure=MEASURE)


def study_of(
    problem: Problem, storage: optuna.storages.BaseStorage | None = None, **key: object
) -> optuna.Study:
    settings = SearchSettings()
    return open_study(
        storage or optuna.storages.InMemoryStorage(),
        StudyKey.of(
            problem.space,
            engine_version="1",
            dtype=problem.dtype,
            basis=problem.basis,
            max_kl=None,
        ),
        make_sampler(settings.sampler, num_trials=0),
    )


class Quiet:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.started_trials: list[int] = []

    def started(self, number: int, candidate: Candidate, origin: str) -> None:
        self.started_trials.append(number)

    def finished(self, trial: FrozenTrial, num_measured: int) -> None:
        pass


class Scripted(Runner):
    """The cost model, but for the runs that a test has something else happen to."""

    def __init__(
        self,
        spec: ModelSpec,
        happens: Callable[[int, TrialRequest, Outcome], Outcome] = lambda run, request, o: o,
    ) -> None:
        self._inner = PredictedRunner(spec)
        self._happens = happens
        self.requests: list[TrialRequest] = []
        self.closed = False

    def run(self, request: TrialRequest) -> Outcome:
        self.requests.append(request)
        return self._happens(len(self.requests), request, self._inner.run(request))

    def close(self) -> None:
        self.closed = True


def statuses(trials: Sequence[FrozenTrial]) -> list[str]:
    return [trial.user_attrs["status"] for trial in trials]
