"""The obvious placements of a machine, filled as far as memory allows."""

from collections import Counter
from collections.abc import Mapping

from autoplace.hardware.machine import Machine
from autoplace.placement.baselines import Baseline, obvious_placements
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.workload import Workload
from tests.placement.machines import machine
from tests.rules.specs import spec

CHAT = Workload("chat", 128, 32, 160)


class Room:
    """A memory plan that a reader can follow: so many expert layers fit each GPU, bytes aside."""

    def __init__(self, **layers: int) -> None:
        self._layers = {name.replace("cuda", "cuda:"): count for name, count in layers.items()}

    def __call__(self, placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        counts = expert_counts(placement)
        return {name: counts[name] - count for name, count in self._layers.items()}


def expert_counts(placement: Placement) -> Counter[str]:
    return Counter(layer.experts.device for layer in placement.layers if layer.experts)


def layer_counts(placement: Placement) -> Counter[str]:
    return Counter(layer.device for layer in placement.layers)


def obvious(where: Machine, room: Room, model: str = "deepseek-v2-lite") -> dict[str, Baseline]:
    space = SearchSpace(spec(model), where, CHAT, "builtin")
    return {baseline.name: baseline for baseline in obvious_placements(space, room)}


def test_without_a_gpu_everything_is_on_the_cpu_and_nothing_else_is_obvious() -> None:
    found = obvious(machine(), Room())
    assert list(found) == ["everything on the CPU"]
    placement = found["everything on the CPU"].placement
    assert {layer.attention.operator for layer in placement.layers} == {"KLinearCPUInfer"}
    assert expert_counts(placement) == {"cpu": 26}


def test_with_gpus_everything_on_the_cpu_is_not_obvious() -> None:
    assert "everything on the CPU" not in obvious(machine(24, 24), Room(cuda0=99, cuda1=99))


def test_two_gpus_have_four_obvious_placements() -> None:
    found = obvious(machine(24, 12), Room(cuda0=6, cuda1=3))
    assert list(found) == [
        "all experts on the CPU",
        "even split",
        "split by memory",
        "one GPU alone",
    ]


def test_the_even_split_fills_each_gpu_with_the_experts_it_has_room_for() -> None:
    placement = obvious(machine(24, 12), Room(cuda0=6, cuda1=3))["even split"].placement
    assert layer_counts(placement) == {"cuda:0": 14, "cuda:1": 13}
    assert expert_counts(placement) == {"cuda:0": 6, "cuda:1": 3, "cpu": 17}


def test_a_gpu_with_room_for_more_takes_no_more_than_its_own_layers() -> None:
    placement = obvious(machine(24, 24), Room(cuda0=99, cuda1=99))["even split"].placement
    assert expert_counts(placement) == {"cuda:0": 13, "cuda:1": 13}


def test_the_split_by_memory_follows_the_budgets() -> None:
    """Budgets of 23.5 and 11.5 GiB: 27 layers · 23.5/35 is 18.1."""
    placement = obvious(machine(24, 12), Room(cuda0=0, cuda1=0))["split by memory"].placement
    assert layer_counts(placement) == {"cuda:0": 18, "cuda:1": 9}


def test_one_gpu_alone_is_the_largest_with_lm_head_on_it() -> None:
    placement = obvious(machine(12, 24), Room(cuda0=9, cuda1=5))["one GPU alone"].placement
    assert layer_counts(placement) == {"cuda:1": 27}
    assert expert_counts(placement) == {"cuda:1": 5, "cpu": 21}
    assert placement.lm_head.device == "cuda:1"


def test_where_no_expert_fits_a_gpu_they_all_stay_on_the_host_and_equals_are_listed_once() -> None:
    found = obvious(machine(24, 24), Room(cuda0=0, cuda1=0))
    assert list(found) == ["all experts on the CPU", "one GPU alone"]


def test_a_dense_model_is_split_without_experts() -> None:
    found = obvious(machine(24, 12), Room(), model="smollm2-135m")
    assert list(found) == ["even split", "split by memory", "one GPU alone"]
