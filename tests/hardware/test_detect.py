import logging
from dataclasses import replace

import pytest

from autoplace.errors import AutoplaceError
from autoplace.hardware.detect import bind, describe, detect_machine, require_present
from autoplace.hardware.host import HostFacts
from autoplace.hardware.nvml import GpuFacts, select_visible, visible_gpus
from autoplace.hardware.profile import machine_from_profile
from autoplace.units import GIB, MIB
from tests.hardware.profiles import profile

HOST = HostFacts("Some-CPU", 64 * GIB, 60 * GIB, num_cores=16, numa_nodes=1)
RTX_4090 = GpuFacts(
    nvml_name="NVIDIA GeForce RTX 4090",
    uuid="GPU-aaaa",
    pci_address="00000000:01:00.0",
    memory_bytes=24564 * MIB,
    free_bytes=24100 * MIB,
    compute_capability=(8, 9),
    bandwidth_bytes_per_s=1008e9,
    pcie_gen=4,
    process_ids=(),
    utilisation_percent=0,
)
SECOND = replace(RTX_4090, uuid="GPU-bbbb", pci_address="00000000:02:00.0")
UNKNOWN = replace(RTX_4090, nvml_name="NVIDIA Future 9000", bandwidth_bytes_per_s=3e12)


def test_the_budget_of_a_card_is_what_is_free_less_the_reserve() -> None:
    machine = describe(HOST, [RTX_4090], reserve_bytes=600 * MIB, host_reserve_bytes=2 * GIB)
    (gpu,) = machine.gpus
    assert (gpu.name, gpu.model, gpu.uuid) == ("cuda:0", "RTX-4090", "GPU-aaaa")
    assert gpu.budget_bytes == (24100 - 600) * MIB
    assert machine.host.budget_bytes == 62 * GIB


@pytest.mark.parametrize(
    ("flags", "flops", "has_bf16"),
    [
        ("avx2 fma", 16 * 96e9, False),
        ("avx2 avx512f", 16 * 192e9, False),
        ("avx2 avx512f avx512_bf16", 16 * 192e9, True),
    ],
)
def test_a_hosts_flops_follow_its_cores_and_its_vectors(
    flags: str, flops: float, has_bf16: bool
) -> None:
    facts = replace(HOST, flags=frozenset(flags.split()))
    host = describe(facts, [], reserve_bytes=0, host_reserve_bytes=0).host
    assert (host.flops, host.has_bf16) == (flops, has_bf16)


def test_a_card_in_use_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    busy = replace(RTX_4090, free_bytes=10000 * MIB)
    with caplog.at_level(logging.WARNING):
        describe(HOST, [RTX_4090, busy], reserve_bytes=0, host_reserve_bytes=0)
    (message,) = caplog.messages
    assert "cuda:1 (RTX-4090) is in use: 14.22 GiB of 23.99 GiB" in message


def test_an_unknown_card_keeps_its_name_and_the_bandwidth_of_its_bus() -> None:
    (gpu,) = describe(HOST, [UNKNOWN], reserve_bytes=0, host_reserve_bytes=0).gpus
    assert gpu.model == "Future-9000"
    assert gpu.bandwidth_bytes_per_s == 3e12


def test_a_present_profile_takes_the_uuids_in_pci_order() -> None:
    machine = bind(machine_from_profile(profile("2x4090")), [RTX_4090, SECOND])
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-aaaa", "GPU-bbbb"]


def test_a_present_profile_has_no_more_than_what_is_free() -> None:
    busy = replace(RTX_4090, free_bytes=10000 * MIB)
    machine = bind(machine_from_profile(profile("1x4090")), [busy])
    assert machine.gpus[0].budget_bytes == 10000 * MIB - int(0.6 * GIB)


@pytest.mark.parametrize(
    ("present", "found"), [([], "no GPU"), ([RTX_4090], "RTX-4090"), ([UNKNOWN], "Future-9000")]
)
def test_a_profile_whose_cards_are_not_here_is_refused_with_a_hint(
    present: list[GpuFacts], found: str
) -> None:
    with pytest.raises(AutoplaceError) as refused:
        bind(machine_from_profile(profile("2x4090")), present)
    assert str(refused.value) == (
        f"hardware=2x4090 has RTX-4090, RTX-4090, but this machine has {found}; "
        "use `plan` for it, or measure=predicted for a study against the cost model"
    )


def test_emulated_gpus_are_always_present() -> None:
    machine = machine_from_profile(profile("emulated-2x2gib"))
    assert require_present(machine) is machine


def test_this_machine_is_present() -> None:
    machine = detect_machine()
    assert [gpu.uuid for gpu in require_present(machine).gpus] == [g.uuid for g in visible_gpus()]


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-aaaa", "GPU-bbbb"]),
        ("", []),
        ("1", ["GPU-bbbb"]),
        ("1,0", ["GPU-aaaa", "GPU-bbbb"]),
        ("GPU-b", ["GPU-bbbb"]),
        ("-1", []),
        ("0,7,1", ["GPU-aaaa"]),
    ],
)
def test_cuda_visible_devices_narrows_what_is_there(visible: str | None, uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in select_visible([RTX_4090, SECOND], visible)] == uuids
