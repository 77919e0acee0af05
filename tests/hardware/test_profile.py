from pathlib import Path

import psutil
import pytest
import yaml

from autoplace.errors import AutoplaceError
from autoplace.hardware import parts
from autoplace.hardware.profile import machine_from_profile
from autoplace.units import GIB, MIB
from tests.hardware.profiles import NAMES, profile

MACHINES = [
    ("1x3090", ["RTX-3090"], 24576, 64),
    ("1x4090", ["RTX-4090"], 24564, 64),
    ("2x4090", ["RTX-4090"] * 2, 24564, 64),
    ("4x3090", ["RTX-3090"] * 4, 24576, 256),
    ("4x4090", ["RTX-4090"] * 4, 24564, 512),
    ("1xa6000", ["RTX-A6000"], 49140, 256),
    ("2xa6000", ["RTX-A6000"] * 2, 49140, 192),
    ("8xl40", ["L40"] * 8, 46068, 768),
    ("1x5090", ["RTX-5090"], 32607, 128),
    ("8xa100-80g", ["A100-80G-SXM"] * 8, 81920, 1024),
]


@pytest.mark.parametrize(("name", "models", "memory_mib", "host_gib"), MACHINES)
def test_a_named_profile_has_the_cards_and_the_memory_of_its_name(
    name: str, models: list[str], memory_mib: int, host_gib: int
) -> None:
    machine = machine_from_profile(profile(name))
    assert machine.name == name
    assert [gpu.model for gpu in machine.gpus] == models
    assert [gpu.name for gpu in machine.gpus] == [f"cuda:{i}" for i in range(len(models))]
    assert {gpu.memory_bytes for gpu in machine.gpus} == {memory_mib * MIB}
    assert machine.host.memory_bytes == host_gib * GIB
    assert not machine.emulated


@pytest.mark.parametrize(
    ("name", "capacity"), [("2xa6000", 51_527_024_640), ("8xl40", 48_305_799_168)]
)
def test_capacities_are_those_of_the_worked_examples(name: str, capacity: int) -> None:
    assert machine_from_profile(profile(name)).gpus[0].memory_bytes == capacity


def test_the_budget_is_the_memory_less_the_reserve() -> None:
    gpu = machine_from_profile(profile("2xa6000", reserve_gib=0.5)).gpus[0]
    assert gpu.budget_bytes == 51_527_024_640 - GIB // 2


def test_unequal_cards_keep_the_order_they_are_given_in() -> None:
    machine = machine_from_profile(profile("5090-3090"))
    assert [gpu.memory_bytes // MIB for gpu in machine.gpus] == [32607, 24576]
    assert machine.host.model == "Ryzen-9950X-2ch-DDR5-6400"


def test_a_composed_machine_is_the_named_one_of_the_same_parts() -> None:
    composed = machine_from_profile(
        profile("custom", gpus=["rtx-5090", "rtx-3090"], host="ryzen-9950x", host_memory_gib=256)
    )
    named = machine_from_profile(profile("5090-3090"))
    assert composed.name == "rtx-5090+rtx-3090+ryzen-9950x"
    assert composed.devices == named.devices
    assert composed.links == named.links


@pytest.mark.parametrize(("given", "expected_gib"), [(12, [12, 12]), ([12.5, 8], [12.5, 8])])
def test_gpu_memory_is_overridden_for_all_or_one_by_one(
    given: object, expected_gib: list[float]
) -> None:
    machine = machine_from_profile(profile("2x4090", gpu_memory_gib=given))
    assert [gpu.memory_bytes / GIB for gpu in machine.gpus] == expected_gib


def test_a_part_may_leave_its_bandwidth_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs it then says so (`predict`), and `probe` measures it."""
    host = {"model": "Mine", "num_cores": 8, "numa_nodes": 1, "pcie_gen": 4}
    host |= {"bandwidth_gb_per_s": None, "theoretical_gb_per_s": None}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"mine": host}))
    monkeypatch.setattr(parts, "PARTS", tmp_path)
    parts.host_parts.cache_clear()
    try:
        assert parts.host_part("mine").bandwidth_bytes_per_s == 0
    finally:
        parts.host_parts.cache_clear()


def test_a_link_runs_at_the_generation_of_its_slower_end() -> None:
    machine = machine_from_profile(profile("5090-3090"))
    speeds = {(link.source, link.target): link.bandwidth_bytes_per_s for link in machine.links}
    assert speeds["cpu", "cuda:0"] == 2 * speeds["cpu", "cuda:1"] == 52.4e9
    assert speeds["cuda:0", "cuda:1"] == pytest.approx(20.7e9)
    assert len(speeds) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": ["rtx-4909"]}, "no GPU 'rtx-4909'; did you mean 'rtx-4090'"),
        ({"host": "ryzen-9950"}, "no host 'ryzen-9950'; did you mean 'ryzen-9950x'"),
        ({"gpus": ["l40", "l4"], "gpu_memory_gib": [1, 2, 3]}, "3 numbers for 2 GPUs"),
        ({"gpus": ["l40"], "gpu_memory_gib": "much"}, "a number or a list, got 'much'"),
        ({"gpus": ["l40"], "gpu_memory_gib": -1}, "a number or a list, got -1"),
        ({"gpus": ["l40"], "gpu_memory_gib": 0.5}, "cuda:0 has 512.0 MiB"),
        ({"gpus": ["l40"], "gpu_memory_gib": float("inf")}, "a number or a list, got inf"),
        ({"gpus": ["l40"], "gpu_memory_gib": True}, "a number or a list, got True"),
        ({"reserve_gib": -1}, "hardware.reserve_gib is a number of GiB, got -1"),
        ({"host_memory_gib": float("nan")}, "hardware.host_memory_gib is a number of GiB, got nan"),
        ({"host_memory_gib": None}, "hardware.host_memory_gib is not given"),
    ],
)
def test_what_makes_no_machine_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(AutoplaceError) as refused:
        machine_from_profile(profile("custom", **changes))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "budgets_mib"),
    [("emulated-2x2gib", [2048, 2048]), ("emulated-256-128mib", [256, 128])],
)
def test_emulated_gpus_are_budgets_that_the_host_gives_up(
    name: str, budgets_mib: list[int]
) -> None:
    machine = machine_from_profile(profile(name))
    assert machine.emulated
    assert [gpu.budget_bytes for gpu in machine.gpus] == [n * MIB for n in budgets_mib]
    alone = machine_from_profile(profile("auto"))
    assert machine.host.memory_bytes == alone.host.memory_bytes - sum(budgets_mib) * MIB


def test_rpc_servers_are_devices_with_a_budget_and_a_place_to_listen() -> None:
    machine = machine_from_profile(profile("rpc-64-128mib"))
    assert machine.emulated
    assert [(gpu.name, gpu.budget_bytes, gpu.endpoint) for gpu in machine.gpus] == [
        ("rpc:0", 64 * MIB, "127.0.0.1:15052"),
        ("rpc:1", 128 * MIB, "127.0.0.1:15053"),
    ]


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        (["127.0.0.1:15052"], "has 1 servers, but hardware.gpu_memory_gib 2 sizes"),
        (["127.0.0.1:1", "127.0.0.1:1"], "names a port twice"),
        (["0.0.0.0:1", "127.0.0.1:2"], "lists 127.0.0.1:PORT, got '0.0.0.0:1'"),
        (["127.0.0.1:1", "127.0.0.1:99999"], "got '127.0.0.1:99999'"),
    ],
)
def test_rpc_servers_that_make_no_machine_are_refused(servers: list[str], message: str) -> None:
    with pytest.raises(AutoplaceError) as refused:
        machine_from_profile(profile("rpc-64-128mib", rpc=servers))
    assert message in str(refused.value)


def test_emulated_budgets_larger_than_the_machine_together_are_refused() -> None:
    half_gib = psutil.virtual_memory().total * 0.6 / GIB
    with pytest.raises(AutoplaceError, match="but this machine has"):
        machine_from_profile(profile("emulated-2x2gib", gpu_memory_gib=[half_gib, half_gib]))


def test_auto_does_not_give_more_host_memory_than_there_is() -> None:
    with pytest.raises(AutoplaceError, match="were asked for"):
        machine_from_profile(profile("auto", host_memory_gib=1e6))


def test_host_memory_of_the_machine_can_be_held_smaller() -> None:
    machine = machine_from_profile(profile("auto", host_memory_gib=3, host_reserve_gib=1))
    assert machine.host.memory_bytes == 3 * GIB
    assert machine.host.budget_bytes == 2 * GIB


@pytest.mark.parametrize("name", [name for name in NAMES if name != "custom"])
def test_every_profile_makes_a_machine(name: str) -> None:
    machine = machine_from_profile(profile(name))
    assert machine.host.name == "cpu"
    assert all(d.budget_bytes > 0 and d.bandwidth_bytes_per_s > 0 for d in machine.devices)
