import pytest

from autoplace.errors import AutoplaceError
from autoplace.export.sglang_kt import Launch, flags_of, smaller_launches
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.placement import Choice
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload
from tests.export.llama_cpp.test_layout import HOST, placed
from tests.rules.specs import spec

MODEL = spec("deepseek-v2")
HOMES = [f"cuda:{layer // 30}" for layer in range(60)]
RUN = RunSettings(24, 512)


def machine(*sizes: int) -> Machine:
    gpus = (Device(f"cuda:{i}", f"GPU-{n}", n, 0, 1e12, 1e14) for i, n in enumerate(sizes))
    return Machine("m", (Device("cpu", "host", 2**40, 0, 1e11, 1e12), *gpus), numa_nodes=2)


@pytest.mark.parametrize(
    ("experts", "count"), [(HOST, 0), (Choice("cuda:0", "KExpertsMarlin", 4), 160)]
)
def test_the_flags_of_a_placement_that_treats_all_layers_alike(experts: Choice, count: int) -> None:
    assignment, homes = placed("deepseek-v2", HOMES, [experts])
    line = flags_of(assignment, homes, MODEL, machine(48, 48), RUN).line()
    assert line.startswith("python -m sglang.launch_server --model MODEL --tensor-parallel-size 2")
    assert line.endswith(f"--kt-cpuinfer 24 --kt-threadpool-count 2 --kt-num-gpu-experts {count}")


def test_unequal_gpus_are_refused() -> None:
    assignment, homes = placed("deepseek-v2", HOMES, [HOST])
    with pytest.raises(AutoplaceError, match="must be equal, but they are GPU-24, GPU-48"):
        flags_of(assignment, homes, MODEL, machine(48, 24), RUN)


def test_experts_of_some_layers_on_gpus_are_refused() -> None:
    mixed = [HOST, Choice("cuda:0", "KExpertsMarlin", 4)]
    assignment, homes = placed("deepseek-v2", HOMES, mixed)
    with pytest.raises(AutoplaceError, match="experts of 30 of 59 layers are on GPUs"):
        flags_of(assignment, homes, MODEL, machine(48, 48), RUN)


def test_a_layer_on_the_host_is_refused() -> None:
    assignment, homes = placed("deepseek-v2", ["cpu", *HOMES[1:]], [HOST])
    with pytest.raises(AutoplaceError, match="every layer must be on a GPU"):
        flags_of(assignment, homes, MODEL, machine(48, 48), RUN)


LONG = Workload("long", 4096, 64, 8192)
GIB = 2**30


def launch(num_gpus: int, num_experts: int = 0) -> Launch:
    return Launch(tuple(f"cuda:{i}" for i in range(num_gpus)), num_experts, 24, 2)


def test_one_gpu_holds_all_but_the_experts_in_bf16_and_the_host_the_gguf() -> None:
    plan = launch(1).plan(MODEL, LONG, RUN)
    per_moe_layer = 132_448_256 + 33_554_432 // 2 + 160 * 5120 + 12_288 + 47_185_920
    dense_layer = per_moe_layer - 160 * 5120 - 47_185_920 + 188_743_680
    rest = 2 * 102_400 * 5120 + 5120
    assert plan.by_device["cuda:0"].weights == 2 * (59 * per_moe_layer + dense_layer + rest)
    assert plan.by_device["cuda:0"].kv_cache == 2 * 576 * 8192 * 60
    assert plan.by_device["cpu"].weights == 134_686_310_400


def test_linears_are_shared_out_while_latent_norms_and_down_projections_are_on_each_gpu() -> None:
    one, two = (launch(n).plan(MODEL, LONG, RUN).by_device["cuda:0"] for n in (1, 2))
    whole = 2 * 60 * (5120 * 1536 + 5120 * 576 + 12_288) + 2 * 59 * 160 * 5120 + 2 * 5120
    assert two.weights == whole + (one.weights - whole) // 2
    assert two.kv_cache == one.kv_cache


def test_each_expert_on_gpus_is_there_in_every_layer() -> None:
    none, some = (launch(2, n).plan(MODEL, LONG, RUN).by_device["cuda:0"] for n in (0, 10))
    assert some.weights - none.weights == 10 * 59 * 3 * 5120 * 1536 * 2 // 2


def test_too_many_experts_are_answered_by_more_gpus_or_fewer_experts_that_fit() -> None:
    four = machine(*[48 * GIB] * 4)
    changes = smaller_launches(launch(2, 40), MODEL, four, LONG, RUN)
    assert [change.what.split(" ")[0] for change in changes] == [
        "--tensor-parallel-size",
        "--kt-num-gpu-experts",
    ]
    fewer = changes[1].launch.num_gpu_experts
    assert 0 < fewer < 40
    one_more = launch(2, fewer + 1).plan(MODEL, LONG, RUN)
    assert one_more.overrun_bytes(four)["cuda:0"] > 0
    assert max(changes[1].plan.overrun_bytes(four).values()) <= 0
