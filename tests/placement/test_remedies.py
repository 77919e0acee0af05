"""The changes with which DeepSeek-V2 would fit, against the worked examples' arithmetic."""

from collections.abc import Callable

import pytest

from autoplace.architectures import read_preset, spec_from_geometry
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.breakdown import breakdown
from autoplace.placement.facts import facts
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.remedies import smallest_changes
from autoplace.placement.settings import RunSettings
from autoplace.placement.situation import Situation
from autoplace.placement.zones import Zone, error_bytes, worst_zone, zone_of
from autoplace.rules.compile import compile_rules
from autoplace.rules.match import assign
from autoplace.rules.subject import homes_of
from autoplace.workload import Workload

GIB = 1024**3
SPEC = spec_from_geometry("deepseek-v2", read_preset("deepseek-v2").geometry, quant="q4_k_m")
L40, A6000 = 48_305_799_168, 51_527_024_640
HOST = Choice("cpu", "KExpertsCPU")


def machine(num_gpus: int, gpu_bytes: int, host_bytes: int = 768 * GIB) -> Machine:
    gpus = (Device(f"cuda:{i}", "GPU", gpu_bytes, 0, 1e12, 1e14, (8, 6)) for i in range(num_gpus))
    return Machine("m", (Device("cpu", "host", host_bytes, 0, 2e11, 1e12), *gpus))


def situation(
    on: Machine,
    device_of: Callable[[int], str],
    experts_of: Callable[[int], Choice],
    *,
    engine: str = "ktransformers-0.3",
    numa_copies: int = 1,
    context: int = 8192,
    lm_head: str = "KLinearTorch",
) -> Situation:
    layers = tuple(
        LayerPlacement(
            device_of(i),
            Choice(device_of(i), "KLinearMarlin", 4),
            Choice(device_of(i), "KLinearMarlin", 4),
            experts_of(i) if i in SPEC.moe_layers else None,
        )
        for i in range(60)
    )
    head = Choice(layers[-1].device, lm_head, 4 if lm_head == "KLinearMarlin" else None)
    rules = compile_rules(Placement(engine, layers, head), SPEC)
    assignment = assign(rules, SPEC, engine=engine)
    return Situation(
        SPEC,
        assignment,
        homes_of(assignment, SPEC),
        on,
        Workload("w", context - 1024, 1024, context),
        RunSettings(8, 512),
        numa_copies=numa_copies,
    )


def eight(layer: int) -> str:
    return f"cuda:{0 if layer < 4 else 1 + (layer - 4) // 8}"


def two(layer: int) -> str:
    return f"cuda:{layer // 30}"


def torch_experts(layer: int) -> Choice:
    return Choice(eight(layer), "KExpertsTorch")


def test_eight_l40_are_told_the_operator_is_the_cause_and_two_ways_out() -> None:
    found = situation(machine(8, L40), eight, torch_experts)
    assert any("445,435,084,800 B" in fact and "not the split" in fact for fact in facts(found))
    marlin, to_host = smallest_changes(found)
    assert "KExpertsMarlin instead of KExpertsTorch" in marlin.what
    assert "2,005,401,600 B a layer instead of 7,549,747,200 B" in marlin.what
    assert marlin.after.plan.by_device["cuda:1"].weights == 17_088_397_312
    assert "to the CPU" in to_host.what
    assert not marlin.after.over
    assert not to_host.after.over


def test_experts_that_leave_a_gpu_are_as_few_as_can_be_and_cheapest_on_the_host() -> None:
    found = situation(machine(8, L40), eight, torch_experts)
    change = next(c for c in smallest_changes(found) if "to the CPU" in c.what)
    moved = change.after.expert_layers_on(["cpu"])
    second = [layer for layer in moved if 4 <= layer < 12]
    bytes_of = {layer: SPEC.n_bytes(module) for layer, module in found.experts.items()}
    assert [bytes_of[layer] for layer in second] == [2_123_366_400] * len(second)
    one_back = found.with_modules(
        [found.experts[layer] for layer in moved if layer != second[0]],
        lambda entry: change.after.assignment.modules[entry.path],
    )
    assert "cuda:1" in one_back.over


def test_two_a6000_with_all_layers_on_one_are_split_otherwise() -> None:
    found = situation(
        machine(2, 9 * GIB), lambda layer: "cuda:0" if layer < 58 else "cuda:1", lambda _: HOST
    )
    assert found.over_gpus == ("cuda:0",)
    change = smallest_changes(found)[0]
    assert change.what.startswith("another split of the layers: layers 0-")
    assert change.after.assignment.transfer_map
    assert not change.after.over


def test_lm_head_that_cannot_be_packed_is_left_plain() -> None:
    found = situation(machine(2, 7 * GIB), two, lambda _: HOST, lm_head="KLinearMarlin")
    assert found.over_gpus == ("cuda:1",)
    (first, *_) = smallest_changes(found)
    assert "KLinearTorch for lm_head" in first.what


def test_a_cache_that_is_too_long_gets_the_longest_that_fits() -> None:
    found = situation(machine(2, 12 * GIB), two, lambda _: HOST, context=163_840)
    change = next(c for c in smallest_changes(found) if "context" in c.what)
    tokens = change.after.workload.context_tokens
    assert not change.changes_rules
    assert tokens % 64 == 0
    assert not change.after.over


def test_two_4090_with_64_gb_cannot_run_the_file_whatever_the_placement() -> None:
    found = situation(machine(2, 24_564 * 1024**2, 64 * 10**9), two, lambda _: HOST)
    said = facts(found)
    assert said[0].startswith("host memory is what is short")
    assert "nearly empty" in said[0]
    assert said[1].startswith("no placement of this file fits this machine")
    assert "experts of at most 3." in said[1]
    assert smallest_changes(found) == []


def test_numa_copies_count_and_one_copy_is_a_way_out() -> None:
    found = situation(machine(2, A6000, 192 * 10**9), two, lambda _: HOST, numa_copies=2)
    assert found.plan.by_device["cpu"].weights == 2 * 134_686_310_400 + 1_048_576_000
    assert any("USE_NUMA" in change.what for change in smallest_changes(found))


def test_experts_on_a_gpu_are_said_first_to_cost_the_graphs_in_ktransformers_only() -> None:
    for engine, said in (("ktransformers-0.3", True), ("builtin", False)):
        found = situation(
            machine(8, L40), eight, lambda i: Choice(eight(i), "KExpertsMarlin", 4), engine=engine
        )
        assert any("turns CUDA graphs off" in fact for fact in facts(found)) is said


def test_the_breakdown_sums_to_the_plan_and_says_what_holds_what() -> None:
    found = situation(machine(8, L40), eight, torch_experts)
    shares = breakdown(SPEC, found.assignment)
    for device, memory in found.plan.by_device.items():
        assert sum(share.n_bytes for share in shares if share.device == device) == memory.weights
    (experts,) = [s for s in shares if s.device == "cuda:1" and s.role == "routed experts"]
    assert (experts.operator, experts.num_modules) == ("KExpertsTorch", 8)
    assert experts.n_bytes == 8 * 7_549_747_200


@pytest.mark.parametrize(
    ("more", "zone"),
    [(-(2**31), Zone.DOES_NOT_FIT), (-1, Zone.CLOSE), (0, Zone.CLOSE), (2**31, Zone.FITS)],
)
def test_three_zones_around_the_peak_of_an_estimated_plan(more: int, zone: Zone) -> None:
    need = situation(machine(2, A6000), two, lambda _: HOST).plan.by_device["cuda:1"].peak
    found = situation(machine(2, need + more), two, lambda _: HOST)
    assert zone_of(found.plan, found.machine, "cuda:1") is zone


def test_an_exact_plan_is_refused_at_the_first_byte_too_many() -> None:
    plan = situation(machine(2, A6000), two, lambda _: HOST, engine="builtin").plan
    need = max(memory.peak for name, memory in plan.by_device.items() if name != "cpu")
    assert worst_zone(plan, machine(2, need - 1)) is Zone.DOES_NOT_FIT
    assert worst_zone(plan, machine(2, need)) is Zone.CLOSE
    assert error_bytes(plan, machine(2, need), "cuda:1") <= 300 * 2**20
