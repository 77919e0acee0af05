"""Bytes over bandwidth, on numbers a reader can check."""

import pytest

from autoplace.hardware.machine import Machine
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace, Value
from autoplace.predict.latency import HOP_S, HOST_EFFICIENCY, LatencyModel, Prediction
from autoplace.predict.solve import best_placements
from autoplace.predict.traffic import Traffic, TrafficModel
from autoplace.workload import Workload
from tests.placement.machines import machine
from tests.rules.specs import spec

CHAT = Workload("chat", 128, 32, 160)
V2 = "deepseek-v2"


def space_of(where: Machine, model: str = V2) -> SearchSpace:
    return SearchSpace(spec(model), where, CHAT, "builtin")


def predict(space: SearchSpace, **values: Value) -> Prediction:
    named = {name.replace("__", ".").replace("cuda", "cuda:"): v for name, v in values.items()}
    return LatencyModel(space.spec, space.machine, CHAT).predict(*space.decode(named))


def traffic(space: SearchSpace) -> dict[str, Traffic]:
    model = TrafficModel(space.spec, CHAT)
    return dict(model.of(*space.decode({"num_threads": 8})))


def test_the_dense_bytes_of_a_gpu_are_those_of_the_worked_example() -> None:
    """golden-memory: 59 MoE layers, the dense layer and lm_head of DeepSeek-V2 under Marlin.

    Without the final norm, which every token reads but no layer has.
    """
    gpu = traffic(space_of(machine(48)))["cuda:0"]
    assert gpu.dense_bytes == 59 * 130_648_064 + 204_212_224 + 278_528_000


def test_a_token_reads_six_of_160_experts() -> None:
    host = traffic(space_of(machine(48)))["cpu"]
    assert host.expert_bytes == 134_686_310_400
    assert host.decode_bytes == pytest.approx(134_686_310_400 * 6 / 160)


def test_a_chunk_of_one_token_reads_what_a_token_reads() -> None:
    host = traffic(space_of(machine(48)))["cpu"]
    assert host.chunk_bytes(1) == pytest.approx(host.decode_bytes)
    assert host.chunk_bytes(10_000) == pytest.approx(134_686_310_400)


def test_decode_on_the_host_is_its_bytes_over_its_bandwidth() -> None:
    """60 GB/s · 0.53, all threads."""
    prediction = predict(space_of(machine(48)), num_threads=8)
    assert prediction.decode_s["cpu"] == pytest.approx(
        134_686_310_400 * 6 / 160 / (60e9 * HOST_EFFICIENCY)
    )


def test_parts_add_up_to_what_is_predicted() -> None:
    prediction = predict(space_of(machine(48)), num_threads=8)
    assert 1 / prediction.decode_tok_per_s == pytest.approx(sum(prediction.decode_s.values()))
    assert prediction.prefill_latency_s == sum(prediction.prefill_s.values())
    assert prediction.request_s(CHAT) == pytest.approx(
        prediction.prefill_latency_s + 31 / prediction.decode_tok_per_s
    )


def test_each_layer_with_experts_elsewhere_costs_two_hops() -> None:
    assert predict(space_of(machine(48))).decode_s["hops"] == pytest.approx(59 * 2 * HOP_S)
    everything = predict(space_of(machine(48)), cuda0__num_experts=59)
    assert everything.decode_s["hops"] == 0


def test_experts_on_a_gpu_are_faster_than_on_the_host() -> None:
    space = space_of(machine(48))
    rates = [predict(space, cuda0__num_experts=n).decode_tok_per_s for n in (0, 20, 40)]
    assert rates == sorted(rates)


def test_an_emulated_gpu_is_as_fast_as_the_host() -> None:
    """The same bytes on the host's bandwidth; the real card has fifteen times that."""
    real = predict(space_of(machine(48)), num_threads=8).decode_s["cuda:0"]
    emulated = predict(space_of(machine(48, emulated=True)), num_threads=8).decode_s["cuda:0"]
    assert emulated / real == pytest.approx((900e9 * 0.70) / (60e9 * HOST_EFFICIENCY))


def test_smaller_chunks_read_the_weights_more_often() -> None:
    space = space_of(machine(48))
    assert (
        predict(space, prefill_chunk=32).prefill_latency_s
        > predict(space, prefill_chunk=128).prefill_latency_s
    )


def test_a_prompt_is_cut_into_chunks_and_a_rest() -> None:
    """100 tokens in chunks of 32: three of 32 and one of 4; hops are paid once a chunk."""
    workload = Workload("w", 100, 32, 132)
    space = SearchSpace(spec(V2), machine(48), workload, "builtin")
    prediction = LatencyModel(space.spec, space.machine, workload).predict(
        space.decode({})[0], RunSettings(8, 32)
    )
    assert prediction.prefill_s["hops"] == pytest.approx(4 * 59 * 2 * HOP_S)


def test_the_best_predicted_fit_and_are_ranked_and_differ() -> None:
    space = space_of(machine(24, 24), model="deepseek-v2-lite")
    model = LatencyModel(space.spec, space.machine, CHAT)

    def fits(placement: Placement, settings: RunSettings) -> bool:
        return settings.num_threads == 8

    best = best_placements(space, model, fits, count=4, seed=0)
    times = [predicted.prediction.request_s(CHAT) for predicted in best]
    assert len({predicted.placement for predicted in best}) == 4
    assert times == sorted(times)
    assert all(predicted.settings.num_threads == 8 for predicted in best)


def test_the_same_seed_predicts_the_same_placements() -> None:
    space = space_of(machine(24, 24), model="deepseek-v2-lite")
    model = LatencyModel(space.spec, space.machine, CHAT)
    first, second = (
        best_placements(space, model, lambda *_: True, count=3, seed=7) for _ in range(2)
    )
    assert first == second


def test_where_nothing_fits_nothing_is_predicted_best() -> None:
    space = space_of(machine(24), model="deepseek-v2-lite")
    model = LatencyModel(space.spec, space.machine, CHAT)
    assert best_placements(space, model, lambda *_: False, count=3, seed=0) == ()
