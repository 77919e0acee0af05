"""Bytes over bandwidth, on numbers a reader can check."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Link, Machine
from autoplace.placement.placement import LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace, Value
from autoplace.predict.calibration import Calibration
from autoplace.predict.costs import (
    EMULATED_HOP_S,
    GPU_EFFICIENCY,
    HANDOVER_S,
    HOP_S,
    MEASURED_GPU_EFFICIENCY,
    chunk_lengths,
)
from autoplace.predict.engine_times import ENGINE_TIMES
from autoplace.predict.latency import LatencyModel, Prediction
from autoplace.predict.quick_memory import quick_overrun
from autoplace.predict.rates import FAMILIES, NO_BF16, HostRates, HostSpeed
from autoplace.predict.solve import Solver
from autoplace.predict.traffic import Traffic, TrafficModel
from autoplace.workload import Workload
from tests.placement.machines import machine
from tests.rules.specs import spec

CHAT = Workload("chat", 128, 32, 160)
V2 = "deepseek-v2"
BIG_HOST = Link("cpu", "cuda:0", 26.2e9, 10e-6)
HOST_EFFICIENCY = 0.53
EXPERT_BYTES = 134_686_310_400


def space_of(where: Machine, model: str = V2, engine: str = "builtin") -> SearchSpace:
    return SearchSpace(spec(model), where, CHAT, engine)


def model_of(space: SearchSpace, calibration: Calibration | None = None) -> LatencyModel:
    return LatencyModel(
        space.spec, space.machine, space.workload, engine=space.engine, calibration=calibration
    )


def decode(space: SearchSpace, **values: Value) -> tuple[Placement, RunSettings]:
    named = {name.replace("__", ".").replace("cuda", "cuda:"): v for name, v in values.items()}
    return space.decode({"num_threads": 8, **named})


def predict(space: SearchSpace, **values: Value) -> Prediction:
    return model_of(space).predict(*decode(space, **values))


def traffic(space: SearchSpace) -> dict[str, Traffic]:
    return dict(TrafficModel(space.spec, CHAT).of(*decode(space)))


def test_the_dense_bytes_of_a_gpu_are_those_of_the_worked_example() -> None:
    """golden-memory: 59 MoE layers, the dense layer and lm_head of DeepSeek-V2 under Marlin.

    Without the final norm, which every token reads but no layer has.
    """
    gpu = traffic(space_of(machine(48)))["cuda:0"]
    assert gpu.dense_bytes == 59 * 130_648_064 + 204_212_224 + 278_528_000


def test_a_token_reads_six_of_160_experts() -> None:
    host = traffic(space_of(machine(48)))["cpu"]
    assert host.expert_bytes == EXPERT_BYTES
    assert host.decode_bytes == pytest.approx(EXPERT_BYTES * 6 / 160)


def test_experts_on_the_host_are_their_bytes_over_its_bandwidth() -> None:
    """60 GB/s · 0.53, all threads."""
    prediction = predict(space_of(machine(48)))
    expected = EXPERT_BYTES * 6 / 160 / (60e9 * HOST_EFFICIENCY)
    assert prediction.decode_s["host_experts"] == pytest.approx(expected)


def test_the_shared_expert_hides_behind_experts_on_the_host() -> None:
    """`dense` is left with all but the shared experts (25,067,520 B a layer), and the cache."""
    prediction = predict(space_of(machine(48)))
    dense = 59 * (130_648_064 - 25_067_520) + 204_212_224
    cache = 60 * (512 + 64) * 2 * (128 + 16)
    assert prediction.decode_s["dense"] == pytest.approx((dense + cache) / (900e9 * GPU_EFFICIENCY))


def test_parts_add_up_to_what_is_predicted() -> None:
    prediction = predict(space_of(machine(48)))
    assert 1 / prediction.decode_tok_per_s == pytest.approx(sum(prediction.decode_s.values()))
    assert prediction.prefill_latency_s == sum(prediction.prefill_s.values())
    assert prediction.request_s(CHAT) == pytest.approx(
        prediction.prefill_latency_s + 31 / prediction.decode_tok_per_s
    )


def test_the_ceiling_is_named() -> None:
    assert predict(space_of(machine(48))).ceiling.startswith(
        "host-bound: experts on the host are 80 % of a token"
    )


def test_each_layer_with_experts_on_the_host_costs_two_hand_overs() -> None:
    row_s = 2 * 5120 / 20e9
    hops = predict(space_of(machine(48))).decode_s["hops"]
    assert hops == pytest.approx(59 * 2 * (HANDOVER_S + row_s))
    everything = predict(space_of(machine(48)), cuda0__num_experts=59)
    assert everything.decode_s["hops"] == 0


def test_a_split_over_two_gpus_costs_one_hop() -> None:
    """And another where lm_head is not behind the last layer."""
    split = {"cuda0__end_layer": 30, "cuda0__num_experts": 29, "cuda1__num_experts": 30}
    hop_s = HOP_S + 2 * 5120 / 20e9
    at_the_end = predict(space_of(machine(48, 48)), lm_head="cuda:1 KLinearMarlin 4", **split)
    assert at_the_end.decode_s["hops"] == pytest.approx(hop_s)
    elsewhere = predict(space_of(machine(48, 48)), lm_head="cuda:0 KLinearMarlin 4", **split)
    assert elsewhere.decode_s["hops"] == pytest.approx(2 * hop_s)


def test_experts_on_a_gpu_are_faster_than_on_the_host_in_builtin() -> None:
    space = space_of(machine(48))
    rates = [predict(space, cuda0__num_experts=n).decode_tok_per_s for n in (0, 20, 40)]
    assert rates == sorted(rates)


def test_the_first_expert_on_a_gpu_turns_cuda_graphs_off_in_ktransformers() -> None:
    """All 60 layers' launches, and the loop over 160 experts of the layer that moved."""
    space = space_of(machine(48), engine="ktransformers-0.3")
    none, one = predict(space), predict(space, cuda0__num_experts=1)
    times = ENGINE_TIMES["ktransformers-0.3"]
    assert none.decode_s["launches"] == 0
    assert one.decode_s["launches"] == pytest.approx(60 * times.layer_launch_s)
    assert one.decode_s["gpu_experts"] > 160 * times.expert_loop_s
    assert one.decode_tok_per_s > 0
    fast = replace(space.machine.host, bandwidth_bytes_per_s=600e9)
    machine_ = replace(space.machine, devices=(fast, *space.machine.gpus))
    space = SearchSpace(space.spec, machine_, CHAT, "ktransformers-0.3")
    rates = [predict(space, cuda0__num_experts=n).decode_tok_per_s for n in (0, 1, 10)]
    assert rates[0] > rates[1]


def test_an_emulated_gpu_is_as_fast_as_the_host_and_hops_are_nothing() -> None:
    """The same bytes of experts, packed, at the host's rate."""
    space = space_of(machine(48, emulated=True))
    emulated = predict(space, cuda0__num_experts=59)
    marlin_bytes = 59 * 2_005_401_600 * 6 / 160
    expected = marlin_bytes / (60e9 * HOST_EFFICIENCY)
    assert emulated.decode_s["gpu_experts"] == pytest.approx(expected)
    row_s = 2 * 5120 / 20e9
    assert predict(space).decode_s["hops"] == pytest.approx(59 * 2 * (EMULATED_HOP_S + row_s))


def test_smaller_chunks_read_the_weights_more_often() -> None:
    space = space_of(machine(48))
    assert (
        predict(space, prefill_chunk=32).prefill_latency_s
        > predict(space, prefill_chunk=128).prefill_latency_s
    )


def test_a_prompt_is_cut_into_chunks_and_a_rest() -> None:
    assert chunk_lengths(100, 32) == {32: 3, 4: 1}
    assert chunk_lengths(64, 32) == {32: 2}
    assert chunk_lengths(5, 32) == {5: 1}


def test_llama_cpp_streams_experts_of_long_prompts_to_the_gpu() -> None:
    """From 32·E/top_k tokens: 854 for DeepSeek-V2."""
    placement, settings = decode(space_of(machine(48)))
    where = replace(machine(48), links=(BIG_HOST,))
    rates = []
    for prompt in (512, 4096):
        work = Workload("w", prompt, 32, prompt + 32)
        model = LatencyModel(spec(V2), where, work, engine="llama.cpp")
        prediction = model.predict(placement, replace(settings, prefill_chunk=prompt))
        rates.append(prompt / prediction.prefill_latency_s)
    assert rates[1] > 2 * rates[0]


def test_a_calibration_corrects_the_costs_of_its_keys() -> None:
    space = space_of(machine(48))
    plain = predict(space)
    factors = {"experts host blocks": 2.0}
    calibration = Calibration(decode=factors, decode_error=0.05)
    corrected = model_of(space, calibration).predict(*decode(space))
    assert corrected.decode_s["host_experts"] == pytest.approx(2 * plain.decode_s["host_experts"])
    assert corrected.prefill_s["host_experts"] == plain.prefill_s["host_experts"]
    assert corrected.decode_error == 0.05


def test_a_probe_that_saw_threads_slow_down_predicts_it() -> None:
    space = space_of(machine(48))
    rates = HostRates(decode_bytes_per_s={"experts blocks": {4: 40e9, 8: 20e9}})
    model = model_of(space, Calibration(rates=rates))
    speeds = [
        model.predict(*decode(space, num_threads=threads)).decode_tok_per_s for threads in (4, 8)
    ]
    assert speeds[0] > 1.6 * speeds[1]


def test_a_machine_without_a_bandwidth_says_which_and_what_measures_it() -> None:
    host = replace(machine().host, bandwidth_bytes_per_s=0.0)
    with pytest.raises(AutoplaceError, match="no bandwidth for the host, which `probe` measures"):
        LatencyModel(spec(V2), replace(machine(), devices=(host,)), CHAT)
    gpu = replace(machine(48).gpus[0], bandwidth_bytes_per_s=0.0)
    where = replace(machine(48), devices=(machine().host, gpu))
    with pytest.raises(AutoplaceError, match="no bandwidth for cuda:0"):
        predict(space_of(where))


@pytest.mark.parametrize("engine", ["builtin", "ktransformers-0.3"])
def test_a_table_predicts_each_placement_as_one_by_one(engine: str) -> None:
    space = space_of(machine(48, 24), engine=engine)
    model = model_of(space)
    values: list[dict[str, Value]] = [
        {"cuda0__end_layer": 60},
        {"cuda0__end_layer": 30, "cuda0__num_experts": 9, "cuda1__num_experts": 4},
        {"cuda0__end_layer": 0, "cuda0__num_experts": 2},
    ]
    decoded = [decode(space, **one) for one in values]
    options = list(
        dict.fromkeys(layer for p, _ in decoded for layer in p.layers if layer.experts is not None)
    )
    heads = list(dict.fromkeys(p.lm_head for p, _ in decoded))
    table = model.table(options, heads, decoded[0][1])
    codes = np.array([[_option(layer, options) for layer in p.layers] for p, _ in decoded])
    batch = table.predict(codes, np.array([heads.index(p.lm_head) for p, _ in decoded]))
    for i, (placement, settings) in enumerate(decoded):
        single = model.predict(placement, settings)
        assert batch.decode_s[i] == pytest.approx(list(single.decode_s.values()))
        assert batch.prefill_s[i] == pytest.approx(list(single.prefill_s.values()))


def _option(layer: LayerPlacement, options: list[LayerPlacement]) -> int:
    for i, option in enumerate(options):
        if option == layer or LatencyModel.on_layer(option, has_experts=False) == layer:
            return i
    raise AssertionError(layer)


def test_more_placements_at_once_take_no_more_calls() -> None:
    """Of Python or of what it is extended by: the work on each placement is numpy's."""
    space = space_of(machine(48, 48))
    placement, settings = decode(space, cuda0__end_layer=30, cuda0__num_experts=9)
    options = [layer for layer in dict.fromkeys(placement.layers) if layer.experts is not None]
    table = model_of(space).table(options, [placement.lm_head], settings)

    def num_calls(num_placements: int) -> int:
        codes = np.random.default_rng(0).integers(0, len(options), (num_placements, 60))
        calls: list[str] = []
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        try:
            table.predict(codes, np.zeros(num_placements, int))
        finally:
            sys.setprofile(None)
        return len(calls)

    num_calls(1)  # what the table works out once is there from here on
    assert num_calls(10_000) == num_calls(10)


def test_measured_links_launches_and_memory_take_the_place_of_the_profiles_own() -> None:
    space = space_of(machine(48))
    placement, settings = decode(space)
    measured = Calibration(
        gpu_bytes_per_s={"cuda:0": 2e11},
        launch_s={"cuda:0": 1e-6},
        links={"cpu cuda:0": (1e-3, 1e12), "cuda:0 cpu": (1e-3, 1e12)},
    )
    prediction = model_of(space, measured).predict(placement, settings)
    assert prediction.decode_s["launches"] == pytest.approx(60 * 60 * 1e-6)
    assert prediction.decode_s["hops"] == pytest.approx(59 * 2 * 1e-3, rel=1e-3)
    head_bytes = 278_528_000
    token_s = ENGINE_TIMES["builtin"].token_s
    assert prediction.decode_s["head"] == pytest.approx(
        head_bytes / (MEASURED_GPU_EFFICIENCY * 2e11) + token_s
    )


def test_plain_weights_are_slow_to_prefill_with_on_a_cpu_without_bf16() -> None:
    there = machine(48)
    without = replace(there, devices=(replace(there.host, has_bf16=False), *there.devices[1:]))
    rates = {
        (family, one.host.has_bf16): HostSpeed(one, HostRates(), efficiency=0.5).prefill(
            "linear", family, 4
        )
        for one in (there, without)
        for family in ("dense", "blocks")
    }
    assert rates["dense", False] == pytest.approx(NO_BF16 * rates["dense", True])
    assert rates["blocks", False] == rates["blocks", True] == rates["dense", True]


def test_lm_head_is_read_at_its_own_rate_or_as_linears_are() -> None:
    rates = HostRates({1: 1e10}, {"linear blocks": {1: 2e9}, "head dense": {1: 9e9}})
    speed = HostSpeed(machine(48), rates, efficiency=0.5)
    assert speed.decode("head", "blocks", 1) == 2e9
    assert speed.decode("head", "dense", 1) == 9e9


def test_a_token_costs_what_was_measured_outside_of_its_layers() -> None:
    space = space_of(machine(48))
    placement, settings = decode(space)
    measured = Calibration(rates=HostRates(token_s={1: 5e-4, 64: 3e-4}))
    plain = predict(space).decode_s["head"] - ENGINE_TIMES["builtin"].token_s
    for threads, token_s in ((1, 5e-4), (64, 3e-4), (100, 3e-4)):
        settings = replace(settings, num_threads=threads)
        head_s = model_of(space, measured).predict(placement, settings).decode_s["head"]
        assert head_s == pytest.approx(plain + token_s)


def test_what_is_measured_around_layers_takes_the_place_of_what_no_rule_replaces() -> None:
    """On a host alone: 60 layers of 2 ms by one thread, of 5 ms by four."""
    space = space_of(machine())
    rates = HostRates(layer_s={1: {1.0: 2e-3, 128.0: 9e-3}, 4: {1.0: 5e-3, 128.0: 9e-3}})
    model = model_of(space, Calibration(rates=rates))
    placement, settings = decode(space)
    for threads, seconds in ((1, 2e-3), (4, 5e-3), (8, 5e-3)):
        prediction = model.predict(placement, replace(settings, num_threads=threads))
        assert prediction.decode_s["launches"] == pytest.approx(60 * seconds)
    whole = replace(settings, prefill_chunk=128)
    assert model.predict(placement, whole).prefill_s["launches"] == pytest.approx(60 * 9e-3)


def test_a_thread_that_costs_more_around_layers_than_it_gains_is_not_used() -> None:
    small = replace(machine(), num_cores=2)
    space = space_of(small, "deepseek-v2-lite")
    names = [f"{kind} {family}" for kind in ("linear", "experts") for family in FAMILIES]
    rates = HostRates(
        bandwidth_bytes_per_s={1: 10e9, 2: 20e9},
        decode_bytes_per_s={name: {1: 5e9, 2: 10e9} for name in names},
        layer_s={1: {1.0: 1e-5}, 2: {1.0: 2e-2}},
    )
    for layer_s, threads in ((rates.layer_s, 1), ({1: {1.0: 1e-5}, 2: {1.0: 1e-5}}, 2)):
        model = model_of(space, Calibration(rates=replace(rates, layer_s=layer_s)))
        solved = Solver(space, model, quick_overrun(model, space)).solve()
        assert solved.pick is not None
        assert solved.pick.settings.num_threads == threads
