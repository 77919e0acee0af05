import pytest

from autoplace.errors import AutoplaceError
from autoplace.export.sglang_kt import flags_of
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.placement import Choice
from autoplace.placement.settings import RunSettings
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
    line = flags_of(assignment, homes, MODEL, machine(48, 48), RUN)
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
