"""Bytes per device against golden-memory's worked examples, and against hand counts."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest

from autoplace.architectures import read_preset, spec_from_geometry
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.errors import AutoplaceError, DoesNotFitError
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.assignment import Assignment
from autoplace.placement.memory import MemoryPlan, layer_cache_bytes, plan_memory
from autoplace.placement.module_bytes import SpecBytes
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.workspace import graph_bytes, workspace_bytes
from autoplace.rules.compile import compile_rules
from autoplace.rules.match import assign
from autoplace.workload import Workload

CHAT_8K = Workload("chat", 4096, 1024, 8192)
SETTINGS = RunSettings(num_threads=8, prefill_chunk=512)
Q6_K_LAYERS = (*range(1, 7), *range(9, 52, 3), *range(52, 60))
"""Expert layers of DeepSeek-V2 Q4_K_M whose `down` is Q6_K."""
A6000 = 51_527_024_640
L40 = 48_305_799_168
HOST_EXPERTS = Choice("cpu", "KExpertsCPU")


@cache
def model(name: str, quant: str = "q4_k_m") -> ModelSpec:
    return spec_from_geometry(name, read_preset(name).geometry, quant=quant)


def placement(
    spec: ModelSpec,
    device_of: Callable[[int], str],
    experts_of: Callable[[int], Choice],
    *,
    engine: str = "builtin",
    lm_head: str = "KLinearMarlin",
) -> Placement:
    """Marlin linears on each layer's device, experts as given."""

    def linear(device: str, operator: str = "KLinearMarlin") -> Choice:
        return Choice(device, operator, 4 if operator == "KLinearMarlin" else None)

    layers = tuple(
        LayerPlacement(
            device=device_of(layer),
            attention=linear(device_of(layer)),
            mlp=linear(device_of(layer)),
            experts=experts_of(layer) if layer in spec.moe_layers else None,
        )
        for layer in range(spec.geometry.num_layers)
    )
    return Placement(engine, layers, linear(layers[-1].device, lm_head))


def assigned(spec: ModelSpec, placed: Placement) -> Assignment:
    return assign(compile_rules(placed, spec), spec, engine=placed.engine)


def plan(spec: ModelSpec, placed: Placement, workload: Workload = CHAT_8K) -> MemoryPlan:
    return plan_memory(spec, assigned(spec, placed), workload=workload, settings=SETTINGS)


def q6_k_first(
    spec: ModelSpec, num_per_device: Mapping[str, int], first_of_second: int
) -> Placement:
    """Marlin experts on as many layers of each GPU, those with a Q6_K `down` first."""

    def device_of(layer: int) -> str:
        return "cuda:0" if layer < first_of_second else "cuda:1"

    chosen: set[int] = set()
    for device, num in num_per_device.items():
        mine = [layer for layer in spec.moe_layers if device_of(layer) == device]
        mine.sort(key=lambda layer: (layer not in Q6_K_LAYERS, layer))
        chosen |= set(mine[:num])

    def experts_of(layer: int) -> Choice:
        on_gpu = layer in chosen
        return Choice(device_of(layer), "KExpertsMarlin", 4) if on_gpu else HOST_EXPERTS

    return placement(spec, device_of, experts_of)


def weights(planned: MemoryPlan) -> dict[str, int]:
    return {device: memory.weights for device, memory in planned.by_device.items()}


def embedding_bytes(spec: ModelSpec) -> int:
    return 2 * spec.geometry.vocab * spec.geometry.hidden


def test_two_a6000_hold_44_expert_layers_of_deepseek_v2() -> None:
    spec = model("deepseek-v2")
    planned = plan(spec, q6_k_first(spec, {"cuda:0": 22, "cuda:1": 22}, 31))
    assert weights(planned) == {
        "cpu": 31_850_496_000 + embedding_bytes(spec),
        "cuda:0": 48_242_489_344,
        "cuda:1": 48_186_167_296,
    }
    assert planned.by_device["cuda:0"].kv_cache == 292_552_704
    assert planned.by_device["cuda:1"].kv_cache == 273_678_336
    standing = [planned.by_device[name].peak for name in ("cuda:0", "cuda:1")]
    assert all(n_bytes <= A6000 for n_bytes in standing)


def test_the_worst_choice_of_layers_leaves_five_gigabytes_more_on_the_host() -> None:
    spec = model("deepseek-v2")
    on_host = Q6_K_LAYERS[:15]

    def experts_of(layer: int) -> Choice:
        return HOST_EXPERTS if layer in on_host else Choice("cuda:0", "KExpertsMarlin", 4)

    planned = plan(spec, placement(spec, lambda _: "cuda:0", experts_of))
    assert weights(planned)["cpu"] - embedding_bytes(spec) == 36_716_544_000


def test_ktransformers_with_no_expert_on_its_card_needs_192_gb_of_host() -> None:
    spec = model("deepseek-v2")
    placed = placement(spec, lambda _: "cuda:0", lambda _: HOST_EXPERTS, engine="ktransformers-0.3")
    planned = plan(spec, placed)
    assert weights(planned)["cuda:0"] == 8_190_986_240
    assert planned.by_device["cuda:0"].kv_cache == 566_231_040
    assert weights(planned)["cpu"] - embedding_bytes(spec) == 134_686_310_400


def test_two_4090_leave_more_experts_on_the_host_than_64_gb_hold() -> None:
    spec = model("deepseek-v2")
    planned = plan(spec, q6_k_first(spec, {"cuda:0": 9, "cuda:1": 9}, 31))
    assert weights(planned)["cpu"] - embedding_bytes(spec) == 90_626_457_600
    assert planned.by_device["cpu"].weights > 64 * 10**9


def eight_l40(spec: ModelSpec, operator: str, *, engine: str) -> MemoryPlan:
    """Layers 4 + 7×8, all experts on their layer's card, the embedding on the first."""

    def device_of(layer: int) -> str:
        return f"cuda:{0 if layer < 4 else 1 + (layer - 4) // 8}"

    def experts_of(layer: int) -> Choice:
        return Choice(device_of(layer), operator, 4 if operator == "KExpertsMarlin" else None)

    placed = placement(spec, device_of, experts_of, engine=engine, lm_head="KLinearTorch")
    assignment = assigned(spec, placed)
    modules = dict(assignment.modules)
    embedding = modules["model.embed_tokens"]
    modules["model.embed_tokens"] = replace(embedding, device="cuda:0")
    return plan_memory(
        spec, replace(assignment, modules=modules), workload=CHAT_8K, settings=SETTINGS
    )


def test_eight_l40_are_too_small_for_torch_experts_whatever_the_split() -> None:
    spec = model("deepseek-v2")
    bytes_of = weights(eight_l40(spec, "KExpertsTorch", engine="ktransformers-0.3"))
    assert [bytes_of[f"cuda:{index}"] for index in range(8)] == [
        24_293_974_016,
        *[61_443_162_112] * 6,
        62_491_748_352,
    ]
    experts = [spec.tensor_infos(module) for module in spec.of_role(Role.EXPERTS)]
    in_bf16 = sum(2 * info.n_elements for infos in experts for info in infos)
    assert in_bf16 == 445_435_084_800 > 8 * L40


def test_eight_l40_hold_marlin_experts() -> None:
    spec = model("deepseek-v2")
    planned = eight_l40(spec, "KExpertsMarlin", engine="ktransformers-0.3")
    assert [weights(planned)[f"cuda:{index}"] for index in range(1, 7)] == [17_088_397_312] * 6
    assert all(planned.by_device[f"cuda:{index}"].peak <= L40 for index in range(8))


def test_one_layer_of_deepseek_v2_takes_the_bytes_counted_by_hand() -> None:
    spec = model("deepseek-v2")
    first = weights(plan(spec, placement(spec, device_of_first, lambda _: HOST_EXPERTS)))
    assert first["cuda:0"] == 204_212_224
    assert first["cuda:1"] == 59 * 130_648_064 + 278_528_000 + 10_240


def device_of_first(layer: int) -> str:
    return "cuda:0" if layer == 0 else "cuda:1"


def test_lm_head_of_deepseek_v3_takes_12_gib_for_a_moment_in_ktransformers() -> None:
    spec = model("deepseek-v3")
    placed = placement(spec, lambda _: "cuda:0", lambda _: HOST_EXPERTS, engine="ktransformers-0.3")
    memory = plan(spec, placed, Workload("short", 1, 1, 64)).by_device["cuda:0"]
    packed_at_once = 14 * 129280 * 7168  # 12.1 GiB
    assert memory.load_peak == packed_at_once + 2**29
    assert 12.0 < packed_at_once / 2**30 < 12.2


def test_scales_of_ktransformers_0_2_1_are_float32() -> None:
    spec = model("deepseek-v2")
    old, new = (
        plan(spec, placement(spec, lambda _: "cuda:0", lambda _: HOST_EXPERTS, engine=engine))
        for engine in ("ktransformers-0.2.1", "ktransformers-0.3")
    )
    kinds = (Role.ATTENTION_LINEAR, Role.DENSE_LINEAR, Role.SHARED_LINEAR, Role.LM_HEAD)
    marlin = sum(
        info.n_elements
        for kind in kinds
        for module in spec.of_role(kind)
        for info in spec.tensor_infos(module)
    )
    assert weights(old)["cuda:0"] - weights(new)["cuda:0"] == marlin // 64 * 2


@pytest.mark.parametrize(
    ("name", "kv_type", "tokens", "n_bytes"),
    [
        ("deepseek-v3", "q8_0", 65536, int(2333.25 * 2**20)),
        ("deepseek-v3", "f16", 32768, 2196 * 2**20),
        ("qwen3-235b-a22b", "f16", 32768, 6016 * 2**20),
        ("qwen3-235b-a22b", "q8_0", 32768, 3196 * 2**20),
    ],
)
def test_the_cache_takes_what_published_logs_say(
    name: str, kv_type: str, tokens: int, n_bytes: int
) -> None:
    spec = model(name)
    layer = layer_cache_bytes(spec.geometry, context_tokens=tokens, kv_type=kv_type)
    assert layer * spec.geometry.num_layers == n_bytes


def machine(**budgets: int) -> Machine:
    devices = (
        Device(name.replace("_", ":"), "test", n_bytes, 0, 1e9, 1e12)
        for name, n_bytes in budgets.items()
    )
    return Machine("test", tuple(devices))


def test_a_placement_one_byte_over_does_not_fit() -> None:
    spec = model("tiny", "q8_0")
    planned = plan(spec, placement(spec, lambda _: "cuda:0", lambda _: HOST_EXPERTS), SHORT)
    need = {name: memory.peak for name, memory in planned.by_device.items()}
    exact = machine(cpu=need["cpu"], cuda_0=need["cuda:0"])
    planned.check(exact)
    assert planned.overrun_bytes(exact) == {"cpu": 0, "cuda:0": 0}
    with pytest.raises(DoesNotFitError, match=r"cpu needs .* \(1 B too little\); cuda:0 needs"):
        planned.check(machine(cpu=need["cpu"] - 1, cuda_0=need["cuda:0"] - 1))


SHORT = Workload("short", 16, 16, 64)


def test_a_device_that_the_machine_lacks_has_no_budget() -> None:
    spec = model("tiny", "q8_0")
    planned = plan(spec, placement(spec, lambda _: "cuda:0", lambda _: HOST_EXPERTS), SHORT)
    overrun = planned.overrun_bytes(machine(cpu=2**40))
    assert overrun["cuda:0"] == planned.by_device["cuda:0"].peak > 0
    assert overrun["cpu"] < 0


def test_every_used_device_and_the_host_get_a_workspace_and_gpus_room_for_graphs() -> None:
    spec = model("tiny", "q8_0")
    planned = plan(spec, placement(spec, lambda _: "cuda:1", lambda _: HOST_EXPERTS), SHORT)
    expected = workspace_bytes(spec.geometry, prefill_chunk=512, context_tokens=64)
    graphs = graph_bytes(spec.geometry, context_tokens=64)
    assert {name: memory.workspace for name, memory in planned.by_device.items()} == {
        "cpu": expected,
        "cuda:1": expected + graphs,
    }


def test_an_engine_without_rule_files_has_no_plan() -> None:
    with pytest.raises(AutoplaceError, match=r"llama\.cpp is not driven by rule files"):
        plan_memory(model("tiny"), Assignment("llama.cpp", {}), workload=SHORT, settings=SETTINGS)


def test_the_sizes_of_a_models_modules_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = model("deepseek-v3")
    first = plan(spec, placement(spec, lambda _: "cuda:0", lambda _: HOST_EXPERTS), CHAT_8K)
    monkeypatch.delattr(SpecBytes, "_size")
    again = plan(spec, placement(spec, lambda _: "cuda:0", lambda _: HOST_EXPERTS), CHAT_8K)
    assert again == first


def test_planning_imports_no_torch() -> None:
    code = "import sys, autoplace.placement.memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
