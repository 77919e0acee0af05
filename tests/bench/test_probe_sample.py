"""The sample of a model: what it is made of, and that factors hidden in its times are found."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from autoplace.architectures import spec_from_geometry
from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Spread
from autoplace.bench.probe_fit import correct, quickest
from autoplace.bench.probe_sample import (
    DECODED,
    GPU_FAMILIES,
    MOST_WEIGHTS,
    Timed,
    load,
    sample_geometry,
    sample_placements,
    sample_tensors,
    time_sample,
    write_sample,
)
from autoplace.bench.probe_subjects import head, layer_experts, layer_linears, never_interleaved
from autoplace.models.backend import kernels
from autoplace.operators.experts_cpu import KExpertsCPU
from autoplace.operators.linear_cpuinfer import KLinearCPUInfer
from autoplace.placement.placement import Choice, Placement
from autoplace.placement.settings import RunSettings
from autoplace.predict.calibration import Calibration
from autoplace.predict.latency import LatencyModel
from autoplace.predict.rates import FAMILIES, HostRates
from autoplace.weights.ggml import GGMLType
from autoplace.workload import Workload
from tests.rules.specs import spec as spec_of
from tests.tuner.problems import small_machine, small_spec

RATES = HostRates(
    {1: 1e10, 2: 2e10},
    {f"{kind} {f}": {1: 1e9, 2: 2e9} for kind in ("linear", "experts") for f in FAMILIES},
    {
        f"{kind} {f}": {1: {1.0: 1e9, 128.0: 1e10}, 2: {1.0: 2e9, 128.0: 2e10}}
        for kind in ("linear", "experts")
        for f in FAMILIES
    },
    {1: {1.0: 1e-4, 128.0: 1e-3}, 2: {1.0: 1e-4, 128.0: 1e-3}},
)


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "deepseek-v3", "qwen3-30b-a3b"])
def test_a_sample_is_some_layers_with_routed_experts_of_a_bounded_size(model: str) -> None:
    geometry = sample_geometry(spec_of(model).geometry)
    weights = sum(
        info.n_elements
        for info in sample_tensors(spec_of(model), geometry)
        if info.name.startswith("blk.")
    )
    assert geometry.num_dense_lead_layers == 0
    assert geometry.num_layers == 1 or weights <= MOST_WEIGHTS
    assert weights < 6 * MOST_WEIGHTS
    assert geometry.moe is not None
    assert geometry.moe.num_experts >= 2 * geometry.moe.top_k


def test_a_dense_model_has_a_sample_of_dense_layers() -> None:
    geometry = spec_of("smollm2-135m").geometry
    sample = sample_geometry(geometry)
    assert sample.num_dense_lead_layers == sample.num_layers <= geometry.num_layers


def test_tensors_have_the_types_of_layers_spread_over_the_model() -> None:
    model = spec_from_geometry(
        "small", replace(small_spec().geometry, num_layers=9), quant="q4_k_m"
    )
    geometry = sample_geometry(model.geometry)
    assert geometry.num_layers == 8
    names = {info.name: info.ggml_type for info in sample_tensors(model, geometry)}
    for layer in range(8):
        name = "ffn_down_exps.weight"
        assert names[f"blk.{layer}.{name}"] is model.tensors[f"blk.{layer + 1}.{name}"].ggml_type


def test_every_family_is_timed_alone_and_beside_experts_in_blocks() -> None:
    placements = list(sample_placements(small_spec(), small_machine(64), FAMILIES))
    assert len(set(placements)) == 2 * len(FAMILIES) - 1


def test_on_a_real_gpu_packed_and_plain_weights_are_timed_beside_those_of_the_host() -> None:
    where = replace(small_machine(64), emulated=False)
    placements = list(sample_placements(small_spec(), where, ("blocks", "dense")))
    on_gpu = [one for one in placements if one.layers[0].device == "cuda:0"]
    assert len(placements) - len(on_gpu) == 3
    assert {one.lm_head.operator for one in on_gpu} == {"KLinearMarlin", "KLinearTorch"}
    beside = [one for one in on_gpu if one.layers[-1].experts == Choice("cpu", "KExpertsCPU")]
    assert len(beside) == len(GPU_FAMILIES) == len(on_gpu) - len(beside)


def test_the_sample_runs_whole_tokens_and_chunks() -> None:
    seen = list(
        time_sample(small_spec(), small_machine(64), ("blocks",), (1,), deadline_s=float("inf"))
    )
    passes = {(one.num_threads, one.tokens, one.position) for one in seen}
    assert passes == {(1, 1, 16), (1, 32, 0), (1, 128, 0)}
    assert all(0 < one.seconds.low <= one.seconds.median <= one.seconds.high for one in seen)


@pytest.mark.parametrize("interleave", ["auto", "off"])
def test_single_operators_read_rows_in_the_order_that_the_engine_gives_them(
    interleave: str, tmp_path: Path
) -> None:
    native = kernels()
    assert native is not None
    sample, machine = write_sample(small_spec(), tmp_path), small_machine(64)
    blocks = next(sample_placements(sample.spec, machine, ("blocks",)))
    model = load(sample, blocks, machine, interleave=interleave)
    loaded: dict[tuple[GGMLType, tuple[int, ...]], bool] = {}
    for module in model.root.modules():
        parts = [module.blocks] if isinstance(module, KLinearCPUInfer) else []
        parts += module.weights if isinstance(module, KExpertsCPU) else []
        loaded |= {(one.ggml_type, one.shape[-2:]): one.interleaved for one in parts}
    model.close()
    interleaves = native.interleave_pays if interleave == "auto" else never_interleaved
    subjects = [make(small_spec(), "blocks", interleaves) for make in (layer_linears, head)]
    stacks = [stack for subject in subjects for stack in subject.stacks]
    stacks += layer_experts(small_spec(), "blocks", interleaves).stacks
    timed = {(one.ggml_type, one.info.shape[-2:]): one.interleaved for one in stacks}
    assert timed == {shape: loaded[shape] for shape in timed}


def test_factors_that_are_hidden_in_the_times_of_the_sample_are_found(tmp_path: Path) -> None:
    """Two threads take three times as long around layers; packed experts are half as fast."""
    spec, machine = write_sample(small_spec(), tmp_path).spec, small_machine(64)
    start = Calibration(rates=RATES)
    truth = {"launch": 3.0, "experts host marlin4": 2.0}
    timed = [
        Timed(spec, placement, 2, 1, position, Spread(s, s, s, 1))
        for placement in sample_placements(spec, machine, FAMILIES)
        for position in (16, 200)
        if (s := seconds_of(start, spec, placement, position, truth))
    ]
    found = correct(start, machine, timed)
    assert found.rates.layer_s[2][1.0] == pytest.approx(3e-4, rel=0.15)
    assert found.rates.layer_s[1] == RATES.layer_s[1]
    for one in timed:
        again = seconds_of(found, spec, one.placement, one.position, {})
        assert again == pytest.approx(one.seconds.median, rel=0.08)


def seconds_of(
    calibration: Calibration,
    spec: ModelSpec,
    placement: Placement,
    position: int,
    factors: Mapping[str, float],
) -> float:
    """Of a token, with the factors hidden in it."""
    middle = position + DECODED // 2
    workload = Workload("w", middle, 1, middle + 1)
    model = LatencyModel(spec, small_machine(64), workload, calibration=calibration)
    costs = model.by_key(placement, RunSettings(2, 1))[0]
    return sum(
        seconds * next((factor for what, factor in factors.items() if what in key), 1.0)
        for key, seconds in costs.items()
    )


def test_of_two_rounds_the_quicker_counts() -> None:
    placement = next(sample_placements(small_spec(), small_machine(64), FAMILIES))
    rounds = [
        Timed(small_spec(), placement, 2, tokens, 0, Spread(s, s, s, 2))
        for tokens, s in ((1, 3.0), (32, 5.0), (1, 1.0), (32, 6.0))
    ]
    assert [(one.tokens, one.seconds.median) for one in quickest(rounds)] == [(1, 1.0), (32, 5.0)]


def test_without_passes_the_rates_of_single_operators_stand() -> None:
    start = Calibration(rates=RATES)
    assert correct(start, small_machine(64), []) is start
