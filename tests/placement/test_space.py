"""Every vector of values is a placement, and every placement of the space has its values."""

import random
from dataclasses import replace

import pytest

from autoplace.architectures.registry import spec_from_geometry
from autoplace.architectures.spec import Role
from autoplace.hardware.machine import Machine
from autoplace.placement.expert_layers import expert_orders, spread_experts
from autoplace.placement.options import chunk_choices, thread_choices
from autoplace.placement.placement import Choice
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace, Value
from autoplace.workload import Workload
from tests.placement.machines import gpu, machine
from tests.rules.specs import GEOMETRIES, spec

Q4_K, Q6_K = 2_123_366_400, 2_447_769_600
"""Bytes of DeepSeek-V2's routed experts in one layer, by the type of `down`."""
CHAT = Workload("chat", 128, 32, 160)


def space_of(model: str, where: Machine, *, engine: str = "builtin") -> SearchSpace:
    return SearchSpace(spec(model), where, CHAT, engine)


SPACES = {
    "two GPUs": ("deepseek-v2-lite", machine(24, 12)),
    "one GPU": ("deepseek-v2-lite", machine(24)),
    "no GPU": ("deepseek-v2-lite", machine()),
    "dense, two GPUs": ("smollm2-135m", machine(8, 8)),
    "no shared expert": ("qwen3-30b-a3b", machine(24, 24)),
}


@pytest.fixture(params=list(SPACES.values()), ids=list(SPACES))
def space(request: pytest.FixtureRequest) -> SearchSpace:
    return space_of(*request.param)


def test_every_vector_stands_for_a_placement_that_has_its_own_values(space: SearchSpace) -> None:
    rng = random.Random(0)
    for _ in range(50):
        placement, settings = space.decode(space.draw(rng))
        values = space.encode(placement, settings)
        assert values is not None
        assert space.contains(values)
        assert space.decode(values) == (placement, settings)


def test_every_layer_lies_on_a_gpu_if_there_is_one(space: SearchSpace) -> None:
    placement, _ = space.decode(space.draw(random.Random(1)))
    allowed = {gpu.name for gpu in space.machine.gpus} or {"cpu"}
    assert {layer.device for layer in placement.layers} <= allowed
    assert all(layer.attention.device == layer.device for layer in placement.layers)


def test_every_module_has_a_choice_where_the_model_has_the_module(space: SearchSpace) -> None:
    placement, _ = space.decode(space.draw(random.Random(2)))
    for index, layer in enumerate(placement.layers):
        assert (layer.experts is not None) == bool(space.spec.of_role(Role.EXPERTS, index))
        has_mlp = space.spec.of_role(Role.DENSE_LINEAR, index) or space.spec.of_role(
            Role.SHARED_LINEAR, index
        )
        assert (layer.mlp is not None) == bool(has_mlp)


def test_layers_of_one_device_follow_each_other_whatever_the_order_of_the_ends() -> None:
    space = space_of("deepseek-v2-lite", machine(24, 24, 24))
    placement, _ = space.decode({"cuda:0.end_layer": 20, "cuda:1.end_layer": 5})
    devices = [layer.device for layer in placement.layers]
    assert devices == ["cuda:0"] * 5 + ["cuda:1"] * 15 + ["cuda:2"] * 7


def test_no_layer_on_a_gpu_is_a_value() -> None:
    space = space_of("deepseek-v2-lite", machine(24, 24))
    placement, _ = space.decode({"cuda:0.end_layer": 0})
    assert {layer.device for layer in placement.layers} == {"cuda:1"}


def test_experts_may_lie_on_a_gpu_that_has_none_of_the_layers() -> None:
    space = space_of("deepseek-v2-lite", machine(24, 24))
    placement, _ = space.decode({"cuda:0.end_layer": 27, "cuda:1.num_experts": 26})
    assert {layer.device for layer in placement.layers} == {"cuda:0"}
    assert {layer.experts.device for layer in placement.layers if layer.experts} == {"cuda:1"}


def test_a_gpu_takes_the_experts_of_its_own_layers_first() -> None:
    devices = spread_experts(
        [0, 1, 2, 3], {"a": 1, "b": 2}, layer_devices=["b", "a", "a", "b"], host="cpu"
    )
    assert devices == {0: "b", 1: "a", 2: "b", 3: "cpu"}


def test_more_experts_than_there_are_are_cut() -> None:
    devices = spread_experts([0, 1], {"a": 9, "b": 9}, layer_devices=["a", "b"], host="cpu")
    assert devices == {0: "a", 1: "a"}


@pytest.mark.parametrize(
    ("order", "host_bytes"),
    [
        ("most_host_bytes", 15 * Q4_K),
        ("first", 11 * Q6_K + 4 * Q4_K),
        ("last", 9 * Q6_K + 6 * Q4_K),
    ],
)
def test_44_layers_on_gpus_leave_the_host_the_bytes_of_the_worked_example(
    order: str, host_bytes: int
) -> None:
    """golden-memory: in DeepSeek-V2 Q4_K_M `down` is Q6_K in 1-6, 9, 12, … 51, and 52-59.

    First 44 on GPUs: the host keeps 45 to 59, of which 45, 48, 51 and 52-59 are Q6_K. Last 44: it
    keeps 1 to 15, of which 1-6, 9, 12 and 15 are.
    """
    model = spec("deepseek-v2")
    on_host = expert_orders(model)[order][44:]
    total = sum(model.n_bytes(m) for i in on_host for m in model.of_role(Role.EXPERTS, i))
    assert total == host_bytes


def test_an_order_that_says_nothing_new_is_not_offered() -> None:
    f16 = spec_from_geometry("f16", GEOMETRIES["deepseek-v2-lite"], quant="f16")
    assert "most_host_bytes" not in expert_orders(f16)


def test_marlin_needs_a_gpu_of_capability_8() -> None:
    old = machine()
    old = replace(old, devices=(*old.devices, gpu(0, 32, (7, 0))))
    placement, _ = space_of("deepseek-v2-lite", old).decode({})
    assert placement.layers[0].attention == Choice("cuda:0", "KLinearTorch")
    placement, _ = space_of("deepseek-v2-lite", machine(32)).decode({})
    assert placement.layers[0].attention == Choice("cuda:0", "KLinearMarlin", 4)


def test_marlin_is_offered_on_emulated_gpus_and_never_on_the_host() -> None:
    space = space_of("deepseek-v2-lite", machine(2, emulated=True))
    by_name = {parameter.name: parameter for parameter in space.parameters}
    assert "KExpertsMarlin 8" in by_name["cuda:0.experts"].choices
    assert set(by_name["cpu.experts"].choices) == {"KExpertsCPU", "KExpertsTorch"}
    assert all("Marlin" not in str(c) for c in by_name["lm_head"].choices if "cpu" in str(c))


def test_an_engine_without_experts_on_gpus_has_no_such_parameters() -> None:
    space = space_of("deepseek-v2-lite", machine(24, 24), engine="ktransformers-0.3.2")
    assert all("num_experts" not in parameter.name for parameter in space.parameters)


def test_a_placement_with_mixed_operators_on_one_device_is_outside_the_space() -> None:
    space = space_of("deepseek-v2-lite", machine(24))
    placement, settings = space.decode({})
    odd = replace(placement.layers[3], attention=Choice("cuda:0", "KLinearTorch"))
    layers = (*placement.layers[:3], odd, *placement.layers[4:])
    assert space.encode(replace(placement, layers=layers), settings) is None


def test_settings_that_are_not_offered_are_outside_the_space() -> None:
    space = space_of("deepseek-v2-lite", machine(24))
    placement, _ = space.decode({})
    assert space.encode(placement, RunSettings(7, 128)) is None


def test_the_hash_changes_with_the_model_the_machine_and_what_is_offered() -> None:
    spaces = [
        space_of("deepseek-v2-lite", machine(24)),
        space_of("deepseek-v2-lite", machine(24, 24)),
        space_of("deepseek-v2", machine(24)),
        space_of("deepseek-v2-lite", machine(24, num_cores=16)),
        replace(space_of("deepseek-v2-lite", machine(24)), kv_types=("f16", "q8_0")),
    ]
    assert len({space.hash for space in spaces}) == len(spaces)
    assert spaces[0].hash == space_of("deepseek-v2-lite", machine(48)).hash


def test_a_neighbour_differs_in_one_parameter_at_most(space: SearchSpace) -> None:
    rng = random.Random(3)
    values: dict[str, Value] = space.draw(rng)
    near = space.mutate(values, rng)
    assert sum(near[name] != value for name, value in values.items()) <= 1


def test_the_default_settings_are_offered(space: SearchSpace) -> None:
    placement, _ = space.decode({})
    assert space.encode(placement, space.default_settings) is not None


@pytest.mark.parametrize(
    ("prompt_tokens", "chunks"),
    [(128, (32, 64, 128)), (100, (32, 64, 100)), (4096, (512, 1024, 2048, 4096)), (7, (7,))],
)
def test_chunks_are_the_prompt_and_the_powers_of_two_below(
    prompt_tokens: int, chunks: tuple[int, ...]
) -> None:
    assert chunk_choices(Workload("w", prompt_tokens, 1, prompt_tokens + 1)) == chunks


@pytest.mark.parametrize(
    ("num_cores", "threads"), [(1, (1,)), (2, (1, 2)), (8, (1, 2, 4, 6, 8)), (6, (1, 2, 4, 6))]
)
def test_threads_end_with_all_cores(num_cores: int, threads: tuple[int, ...]) -> None:
    assert thread_choices(machine(num_cores=num_cores)) == threads
