"""Real trials of `tiny`, in this process: what comes out of good and of faulty ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoplace.bench.metrics import Basis, Status
from autoplace.bench.worker import prepare, run_trial
from autoplace.hardware.machine import Machine
from tests.bench.trial_requests import TinyModel


def with_budget(machine: Machine, name: str, n_bytes: int) -> Machine:
    devices = tuple(
        replace(device, memory_bytes=n_bytes) if device.name == name else device
        for device in machine.devices
    )
    return replace(machine, devices=devices)


def test_a_trial_measures_and_declares_exactly_the_predicted_bytes(tiny: TinyModel) -> None:
    request = tiny.request()
    outcome = run_trial(request)
    assert outcome.status is Status.OK, outcome.reason
    assert outcome.basis is Basis.EMULATED
    assert outcome.metrics is not None
    assert outcome.metrics.decode_tok_per_s.median > 0
    assert outcome.metrics.prefill_tok_per_s == pytest.approx(
        16 / outcome.metrics.prefill_latency_s.median
    )
    planned = tiny.plan(request).by_device
    assert {
        name: (b.weights, b.kv_cache, b.workspace, b.peak)
        for name, b in outcome.metrics.bytes_by_device.items()
    } == {name: (b.weights, b.kv_cache, b.workspace, b.peak) for name, b in planned.items()}
    assert outcome.environment["torch_threads"] == 1
    assert "not_freed" not in outcome.environment


def test_quality_is_near_the_reference_but_not_at_it(tiny: TinyModel) -> None:
    """Marlin's 4 bits, and the engine's bfloat16, against float32."""
    metrics = run_trial(tiny.request()).metrics
    assert metrics is not None
    assert metrics.quality is not None
    assert metrics.quality.num_positions == 8
    assert 0 < metrics.quality.mean_kl < 1


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cpu"])
def test_a_budget_one_byte_too_small_is_out_of_memory_on_that_device(
    tiny: TinyModel, device: str
) -> None:
    request = tiny.request()
    peak = tiny.plan(request).by_device[device].peak
    exact = replace(request, machine=with_budget(request.machine, device, peak))
    assert run_trial(exact).status is Status.OK
    short = replace(request, machine=with_budget(request.machine, device, peak - 1))
    outcome = run_trial(short)
    assert outcome.status is Status.OUT_OF_MEMORY
    assert outcome.out_of_memory_device == device
    assert outcome.out_of_memory_bytes == 1
    assert tiny.plan(short).overrun_bytes(short.machine)[device] == 1
    assert outcome.metrics is None
    assert "not_freed" not in outcome.environment


@pytest.mark.parametrize("quality", [True, False])
def test_nan_weights_are_not_finite(tiny: TinyModel, tmp_path: Path, quality: bool) -> None:
    broken = tiny.with_nan_scales(tmp_path / "nan.gguf").request()
    request = replace(broken, measure=replace(broken.measure, quality=quality))
    outcome = prepare(request) or run_trial(request)
    assert outcome.status is Status.NOT_FINITE
    assert "are not finite" in outcome.reason


def test_rules_that_cannot_run_are_refused_with_the_reason(tiny: TinyModel) -> None:
    request = tiny.request()
    outcome = run_trial(replace(request, rules=request.rules.replace("cuda:1", "cuda:7")))
    assert outcome.status is Status.REFUSED
    assert "cuda:7" in outcome.reason


def test_a_missing_file_is_refused(tiny: TinyModel) -> None:
    outcome = run_trial(replace(tiny.request(), model_path="/nowhere/tiny.gguf"))
    assert outcome.status is Status.REFUSED
    assert "does not exist" in outcome.reason
