from dataclasses import replace

import pytest

from autoplace.hardware.fingerprint import fingerprint
from autoplace.hardware.machine import Machine
from autoplace.hardware.profile import machine_from_profile
from autoplace.units import GIB
from tests.hardware.profiles import profile


def two_4090(**changes: object) -> Machine:
    return machine_from_profile(profile("2x4090", **changes))


@pytest.mark.parametrize(
    "changes",
    [{"gpu_memory_gib": 12}, {"host_memory_gib": 128}, {"num_cores": 8}, {"gpus": ["rtx-4090"]}],
)
def test_another_machine_has_another_fingerprint(changes: dict[str, object]) -> None:
    assert fingerprint(two_4090(**changes)) != fingerprint(two_4090())


def test_name_serial_numbers_and_what_is_free_make_no_difference() -> None:
    machine = two_4090()
    cards = tuple(
        replace(gpu, uuid=f"GPU-{gpu.name}", reserve_bytes=5 * GIB) for gpu in machine.gpus
    )
    other = replace(machine, name="other", devices=(machine.host, *cards))
    assert fingerprint(other) == fingerprint(machine)


def test_an_emulated_machine_is_never_a_real_one() -> None:
    machine = two_4090()
    assert fingerprint(replace(machine, emulated=True)) != fingerprint(machine)
