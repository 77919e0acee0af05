"""Places: moves that are needed are made, and mixing devices is noticed in the test mode."""

import pytest
import torch

from autoplace.hardware.machine import Device, Machine
from autoplace.models.place import HOST, Place, checked_places, expect, move, places_of, put

GPU = Place("cuda:0", torch.device("cpu"))


def _machine(*, emulated: bool) -> Machine:
    devices = tuple(Device(name, "test", 1, 0, 1.0, 1.0) for name in ("cpu", "cuda:0"))
    return Machine("test", devices, emulated=emulated)


def test_emulated_gpus_are_in_host_memory_and_real_ones_are_not() -> None:
    assert places_of(_machine(emulated=True))["cuda:0"].runs_on_host
    assert not places_of(_machine(emulated=False))["cuda:0"].runs_on_host


def test_moving_between_emulated_devices_copies_nothing_outside_the_test_mode() -> None:
    x = torch.ones(2)
    assert move(x, GPU) is x


def test_results_of_an_operation_are_where_its_inputs_are() -> None:
    with checked_places():
        y = put(torch.ones(2), GPU) + 1
        expect(y, GPU)
        with pytest.raises(AssertionError):
            expect(y, HOST)


def test_an_operation_between_two_devices_is_refused() -> None:
    with checked_places():
        x, y = put(torch.ones(2), GPU), put(torch.ones(2), HOST)
        with pytest.raises(AssertionError, match=r"mixes \['cpu', 'cuda:0'\]"):
            x + y
        assert (x + move(y, GPU)).tolist() == [2.0, 2.0]
