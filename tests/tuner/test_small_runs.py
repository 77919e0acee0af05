"""Trials that really run, on a model of a few MB and without Ray, end as they were predicted to."""

from dataclasses import replace
from pathlib import Path

import pytest
from optuna.trial import TrialState

from autoplace.architectures import file_metadata, file_tensors, spec_from_gguf
from autoplace.bench.metrics import Basis
from autoplace.bench.request import MeasureSettings
from autoplace.hardware.machine import Machine
from autoplace.placement.space import SearchSpace
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.first_placements import UserRules
from autoplace.tuner.inline_runner import InlineRunner
from autoplace.tuner.records import record_of
from autoplace.tuner.sampler import SamplerSettings
from autoplace.tuner.search import Search, SearchSettings
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf
from tests.tuner.problems import GEOMETRY, WORKLOAD, Quiet, small_machine, study_of

LENIENT = MeasureSettings(
    min_repeats=1,
    max_repeats=1,
    max_relative_spread=10.0,
    unstable_spread=100.0,
    max_wait_share=1.0,
    max_other_share=1.0,
    quality=False,
)
"""Tests share their machine with others, so its gates on contention are open here."""
ONE = SearchSettings(n_trials=1, sampler=SamplerSettings(n_startup_trials=2), num_predicted=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    write_gguf(
        path,
        metadata=file_metadata("small", GEOMETRY, "q8_0"),
        tensors=file_tensors(GEOMETRY, quant="q8_0"),
        seed=0,
    )
    return path


def problem_on(machine: Machine, model: Path) -> Problem:
    spec = spec_from_gguf(GGUFFile.open(model), name="small")
    space = SearchSpace(spec, machine, WORKLOAD, "builtin")
    return Problem(space, str(model), "bfloat16", Basis.EMULATED, measure=LENIENT)


def one_byte_too_small(model: Path, device: str) -> tuple[Problem, UserRules]:
    """A placement on two GPUs, and the machine whose `device` has a byte less than it needs."""
    problem = problem_on(small_machine(64, 64, num_cores=1), model)
    placement, settings = problem.space.decode(
        {"cuda:0.end_layer": 2, "cuda:0.num_experts": 1, "cuda:1.num_experts": 1}
    )
    candidate = Preparer(problem).prepare(placement, settings)
    devices = tuple(
        replace(one, memory_bytes=candidate.plan.by_device[device].peak - 1)
        if one.name == device
        else one
        for one in problem.machine.devices
    )
    smaller = replace(problem.machine, devices=devices)
    return problem_on(smaller, model), UserRules(placement, settings, candidate.rules)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_budget_one_byte_too_small_ends_the_same_with_and_without_pruning(
    model: Path, device: str
) -> None:
    problem, rules = one_byte_too_small(model, device)
    ends = []
    for prune in (True, False):
        study = study_of(problem)
        search = Search(problem, study, InlineRunner(), replace(ONE, prune=prune), listener=Quiet())
        search.enqueue_first(user_rules=rules)
        search.run()
        ends.append(study.trials[0])
    predicted, run = ends
    assert predicted.state is run.state is TrialState.PRUNED
    assert predicted.user_attrs["status"] == "predicted_not_to_fit"
    assert run.user_attrs["status"] == "out_of_memory"
    assert run.user_attrs["outcome"]["out_of_memory_device"] == device
    assert run.user_attrs["outcome"]["out_of_memory_bytes"] == 1
    assert predicted.constraints == run.constraints
    assert predicted.constraints[device] == 1


def test_a_search_on_emulated_gpus_measures_what_it_predicted_to_fit(model: Path) -> None:
    problem = problem_on(small_machine(5, 4, num_cores=1), model)
    study = study_of(problem)
    settings = replace(ONE, n_trials=5, num_predicted=2)
    search = Search(problem, study, InlineRunner(), settings, listener=Quiet())
    search.enqueue_first()
    assert search.run() == "5 trials are complete"
    for record in map(record_of, study.trials):
        assert record.status != "out_of_memory"
        if record.measured:
            declared = record.metrics.bytes_by_device
            assert {name: declared[name].peak for name in declared} == record.predicted_bytes
