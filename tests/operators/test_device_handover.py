"""Handing work to the host: only for a GPU's layer, and in phases that a recording can cut."""

from collections.abc import Callable

import torch
from torch import Tensor

from autoplace.models.place import HOST, Place
from autoplace.operators.device_handover import begin, hands_over, recorded
from tests.operators.weights import GPU

CUDA = Place("cuda:0", torch.device("cuda:0"))


class Steps:
    """A recording that only notes its steps."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def cut(self, step: Callable[[], None]) -> None:
        step()
        self.steps.append(step)


def test_only_a_gpu_hands_work_over_and_only_to_the_cpu() -> None:
    assert hands_over(HOST, CUDA)
    assert not hands_over(CUDA, CUDA)
    assert not hands_over(HOST, HOST)


def test_an_emulated_gpu_hands_over_only_while_it_is_recorded() -> None:
    assert not hands_over(HOST, GPU)
    with recorded(Steps()):
        assert hands_over(HOST, GPU)
        assert not hands_over(HOST, HOST)
    assert not hands_over(HOST, GPU)


def test_work_is_not_begun_before_its_result_is_asked_for() -> None:
    seen: list[float] = []

    def work(x: Tensor) -> Tensor:
        seen.append(x.item())
        return 2 * x

    x = torch.tensor([3.0])
    finish = begin(work, (x,), GPU)
    x.zero_()
    assert not seen
    assert finish().item() == 6.0
    assert seen == [3.0]


def test_a_recording_has_the_mark_and_the_work_as_its_steps() -> None:
    recording = Steps()
    with recorded(recording):
        finish = begin(lambda x: x + 1, (torch.tensor([1.0]),), GPU)
        assert len(recording.steps) == 1
        assert finish().item() == 2.0
    assert len(recording.steps) == 2


def test_a_second_handover_before_the_first_is_finished_does_not_disturb_it() -> None:
    """A shared expert's linears may be on the CPU too, beside the routed experts."""
    first = begin(lambda x: x + 1, (torch.tensor([1.0]),), GPU)
    second = begin(lambda x: x + 1, (torch.tensor([10.0]),), GPU)
    assert second().item() == 11.0
    assert first().item() == 2.0
