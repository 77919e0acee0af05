"""What is stored with a trial comes back as it was."""

import json

import pytest

from autoplace.bench.metrics import Basis, Outcome, Status
from autoplace.tuner.records import (
    outcome_from_json,
    outcome_to_json,
    placement_from_json,
    placement_to_json,
    record_of,
)
from tests.tuner.trials import PLACEMENT, SETTINGS, add_measured, new_study, outcome

OUT_OF_MEMORY = Outcome(
    Status.OUT_OF_MEMORY,
    Basis.EMULATED,
    reason="out of memory on cuda:0",
    out_of_memory_device="cuda:0",
    out_of_memory_bytes=1,
    environment={"num_threads": 2},
)


def test_a_placement_comes_back_from_json() -> None:
    assert placement_from_json(json.loads(json.dumps(placement_to_json(PLACEMENT)))) == PLACEMENT


@pytest.mark.parametrize("stored", [outcome(10.0, 0.5), OUT_OF_MEMORY])
def test_an_outcome_comes_back_from_json(stored: Outcome) -> None:
    assert outcome_from_json(json.loads(json.dumps(outcome_to_json(stored)))) == stored


def test_a_trial_reads_back_typed() -> None:
    study = new_study()
    add_measured(study, 10.0, 0.5, origin="obvious: even split")
    record = record_of(study.trials[0])
    assert record.placement == PLACEMENT
    assert record.settings == SETTINGS
    assert record.metrics.decode_tok_per_s.median == 10.0
    assert record.is_obvious
    assert record.feasible


def test_a_trial_that_waits_has_nothing_to_read() -> None:
    study = new_study()
    study.enqueue_trial({})
    record = record_of(study.trials[0])
    assert record.placement is None
    assert not record.measured
