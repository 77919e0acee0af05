"""The solver against enumeration, against draws, and against machines with a known answer."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product

import pytest

from autoplace.architectures.geometry import Geometry, Mla, Moe, Rope
from autoplace.architectures.registry import spec_from_geometry
from autoplace.architectures.spec import ModelSpec
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.expand import Expander
from autoplace.placement.memory import plan_memory
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.best import best_placements
from autoplace.predict.choices import undominated
from autoplace.predict.latency import LatencyModel
from autoplace.predict.predicted import front_of
from autoplace.predict.solve import Solver
from autoplace.units import GIB, MIB
from autoplace.workload import Workload
from tests.placement.machines import machine
from tests.rules.specs import spec

CHAT = Workload("chat", 128, 32, 160)
SHORT = Workload("short", 64, 8, 72)
SMALL = Geometry(
    architecture="deepseek2",
    num_layers=4,
    num_dense_lead_layers=1,
    hidden=512,
    num_heads=4,
    dense_ffn=512,
    vocab=512,
    context_length=512,
    rms_eps=1e-6,
    attention=Mla(None, 128, 32, 32, 32),
    rope=Rope(theta=10000.0, dim=32, interleaved=True),
    moe=Moe(num_experts=16, top_k=4, expert_ffn=512, shared_ffn=512),
)
Overrun = Callable[[Placement, RunSettings], Mapping[str, int]]


def small_space(*gpus_mib: float, bandwidths: tuple[float, ...] = (900e9, 400e9)) -> SearchSpace:
    host = Device("cpu", "host", 4 * GIB, 0, 20e9, 2e11)
    gpus = tuple(
        Device(f"cuda:{i}", f"gpu{i}", int(mib * MIB), 0, bandwidths[i], 70e12, (8, 6))
        for i, mib in enumerate(gpus_mib)
    )
    where = Machine("small", (host, *gpus), num_cores=4)
    return SearchSpace(spec_from_geometry("small", SMALL, quant="q8_0"), where, SHORT, "builtin")


def overrun_of(space: SearchSpace) -> Overrun:
    expander = Expander(space.spec)

    def overrun(placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        assignment = expander.expand(placement)
        plan = plan_memory(space.spec, assignment, workload=space.workload, settings=settings)
        return plan.overrun_bytes(space.machine)

    return overrun


def model_of(space: SearchSpace) -> LatencyModel:
    return LatencyModel(space.spec, space.machine, space.workload, engine=space.engine)


def every_placement(space: SearchSpace) -> Iterator[Placement]:
    """All splits of 4 layers, all devices of the experts of 3, all of lm_head; Marlin of 4 bits."""
    gpus = [gpu.name for gpu in space.machine.gpus]
    experts = [Choice(gpu, "KExpertsMarlin", 4) for gpu in gpus] + [Choice("cpu", "KExpertsCPU")]
    for end, head, *chosen in product(range(5), gpus, experts, experts, experts):
        layers = []
        for i, expert in enumerate((None, *chosen)):
            gpu = gpus[0] if i < end else gpus[1]
            linear = Choice(gpu, "KLinearMarlin", 4)
            layers.append(LayerPlacement(gpu, linear, linear, expert))
        yield Placement("builtin", tuple(layers), Choice(head, "KLinearMarlin", 4))


@pytest.mark.parametrize(
    "gpus_mib", [(16, 16), (13, 24), (24, 13), (60, 60), (14.5, 15.5)], ids=str
)
def test_no_placement_of_a_whole_enumeration_beats_the_pick_or_the_bound(
    gpus_mib: tuple[float, float],
) -> None:
    space, settings = small_space(*gpus_mib), RunSettings(4, 64)
    model, overrun = model_of(space), overrun_of(space)
    solved = Solver(space, model, overrun, settings=[settings]).solve()
    times = [
        model.predict(placement, settings).request_s(SHORT)
        for placement in every_placement(space)
        if max(overrun(placement, settings).values()) <= 0
    ]
    assert solved.pick is not None
    pick_s = solved.pick.prediction.request_s(SHORT)
    assert solved.bound_s <= min(times) * (1 + 1e-9)
    assert pick_s <= min(times) * 1.005
    assert solved.bound_s * (1 - 1e-9) <= pick_s <= solved.bound_s * 1.05


def test_everything_in_the_pool_fits_and_is_ranked() -> None:
    space = SearchSpace(spec("deepseek-v2-lite"), machine(8, 6), CHAT, "builtin")
    overrun = overrun_of(space)
    solved = Solver(space, model_of(space), overrun).solve()
    assert solved.pool
    assert all(max(overrun(one.placement, one.settings).values()) <= 0 for one in solved.pool)
    times = [one.prediction.request_s(CHAT) for one in solved.pool]
    assert times == sorted(times)


@pytest.mark.parametrize("engine", ["builtin", "ktransformers-0.3"])
@pytest.mark.parametrize("gpus_gib", [(8, 6), (4, 12, 4)], ids=str)
def test_no_draw_that_fits_beats_the_bound(engine: str, gpus_gib: tuple[float, ...]) -> None:
    lite: ModelSpec = spec("deepseek-v2-lite")
    space = SearchSpace(lite, machine(*gpus_gib), CHAT, engine)
    model, overrun = model_of(space), overrun_of(space)
    solved = Solver(space, model, overrun).solve()
    rng = random.Random(0)
    for _ in range(200):
        placement, settings = space.decode(space.draw(rng))
        if max(overrun(placement, settings).values()) <= 0:
            request_s = model.predict(placement, settings).request_s(CHAT)
            assert request_s >= solved.bound_s * (1 - 1e-9)


def test_the_experts_that_free_most_of_the_host_go_to_the_gpus() -> None:
    """golden-memory: 29 of DeepSeek-V2's 59 expert layers have a Q6_K `down`."""
    where = machine(48, 48)
    host = replace(where.host, memory_bytes=256 * GIB)
    where = replace(where, devices=(host, *where.gpus))
    space = SearchSpace(spec("deepseek-v2"), where, CHAT, "builtin")
    solved = Solver(space, model_of(space), overrun_of(space)).solve()
    assert solved.pick is not None
    on_host = [
        i
        for i, layer in enumerate(solved.pick.placement.layers)
        if layer.experts is not None and layer.experts.device == "cpu"
    ]
    q6_k = {*range(1, 7), *range(9, 52, 3), *range(52, 60)}
    assert len(on_host) <= 15
    assert not q6_k & set(on_host)


def test_ktransformers_keeps_its_cards_empty_where_builtin_fills_them() -> None:
    """The first expert on a GPU costs the CUDA graph."""
    where = machine(48, 48)
    host = replace(where.host, memory_bytes=256 * GIB, bandwidth_bytes_per_s=400e9)
    where = replace(where, devices=(host, *where.gpus), num_cores=32)
    on_gpus = {}
    for engine in ("builtin", "ktransformers-0.3"):
        space = SearchSpace(spec("deepseek-v2"), where, CHAT, engine)
        solved = Solver(space, model_of(space), overrun_of(space)).solve()
        on_gpus[engine] = sum(
            layer.experts is not None and layer.experts.device != "cpu"
            for layer in solved.front[0].placement.layers
        )
    assert on_gpus["builtin"] > 40
    assert on_gpus["ktransformers-0.3"] == 0


def test_a_host_without_gpus_is_solved_too() -> None:
    where = machine()
    space = SearchSpace(spec("deepseek-v2-lite"), where, CHAT, "builtin")
    solved = Solver(space, model_of(space), overrun_of(space)).solve()
    assert solved.pick is not None
    assert {layer.device for layer in solved.pick.placement.layers} == {"cpu"}


def test_where_nothing_fits_nothing_is_found() -> None:
    space = SearchSpace(spec("deepseek-v2"), machine(24, 24), CHAT, "builtin")
    solved = Solver(space, model_of(space), overrun_of(space)).solve()
    assert solved.pool == ()
    assert solved.pick is None
    best = best_placements(space, model_of(space), overrun_of(space), count=3, seed=0)
    assert best == ()


def test_the_front_is_ordered_and_undominated() -> None:
    space = SearchSpace(spec("deepseek-v2-lite"), machine(6, 6), CHAT, "builtin")
    solved = Solver(space, model_of(space), overrun_of(space)).solve()
    decode = [one.prediction.decode_tok_per_s for one in solved.front]
    prefill = [one.prediction.prefill_latency_s for one in solved.front]
    assert decode == sorted(decode, reverse=True)
    assert prefill == sorted(prefill, reverse=True)
    assert front_of(solved.pool) == list(solved.front)


def test_the_best_predicted_are_different_placements_by_their_time() -> None:
    space = SearchSpace(spec("deepseek-v2-lite"), machine(8, 6), CHAT, "builtin")
    model, overrun = model_of(space), overrun_of(space)
    first, second = (best_placements(space, model, overrun, count=6, seed=7) for _ in range(2))
    times = [one.prediction.request_s(CHAT) for one in first]
    assert first == second
    assert len({one.placement for one in first}) == 6
    assert times == sorted(times)
    assert all(max(overrun(one.placement, one.settings).values()) <= 0 for one in first)


def test_of_equal_choices_the_first_stays() -> None:
    assert undominated([(2, 2), (1, 3), (2, 2), (3, 3)]) == [0, 1]
