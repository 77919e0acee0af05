"""A decoded token's time goes to the roles that took it, and to no other."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autoplace.bench import roles
from autoplace.bench.roles import (
    BETWEEN,
    EMBEDDING,
    EXPERTS,
    HAND_OVER,
    HEAD,
    ROLES,
    SHARED,
    TIMED_TOKENS,
    Stopwatch,
    seconds_by_role,
)
from autoplace.bench.worker import run_trial
from autoplace.engine.model import HybridModel
from autoplace.models.backend import slow_twin
from tests.bench.trial_requests import TinyModel
from tests.engine.tiny import load_tiny, placed, write_tiny

EVERY_FAMILY = {"attention", "norms", HEAD, EMBEDDING, BETWEEN}
PARTS = {
    "tiny": {"dense", "router", EXPERTS, SHARED},
    "tiny-qwen2moe": {"router", EXPERTS, SHARED},
    "tiny-mixtral": {"router", EXPERTS},
    "tiny-llama": {"dense"},
}
"""What else a token of a family passes through."""


class Clock:
    """In place of the module `time`: moves when told to, and by `step_s` whenever it is read."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 0.0
        self._step_s = step_s

    def perf_counter(self) -> float:
        self.now_s += self._step_s
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(roles, "time", stopped)
    return stopped


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A second between any two looks: a role that was watched has time, any other has none."""
    clock = Clock(step_s=1.0)
    monkeypatch.setattr(roles, "time", clock)
    return clock


def loaded(folder: Path, family: str = "tiny", **where: Any) -> HybridModel:
    gguf, spec = write_tiny(folder, family, "q8_0")
    return load_tiny(gguf, spec, placed(spec, **where))


def timed(model: HybridModel, num_tokens: int = 2) -> dict[str, float]:
    tokens = list(range(3, 3 + 8 + num_tokens))
    return seconds_by_role(model, tokens[:8], tokens[8:], synchronise=lambda: None)


def took_time(seconds: dict[str, float]) -> set[str]:
    return {role for role, s in seconds.items() if s > 0}


def test_time_within_an_inner_role_is_not_the_outer_ones(clock: Clock) -> None:
    stopwatch = Stopwatch(lambda: None)
    stopwatch.start()
    clock.now_s += 1
    stopwatch.enter("router")
    clock.now_s += 2
    stopwatch.enter(EXPERTS)
    clock.now_s += 4
    stopwatch.leave()
    clock.now_s += 8
    stopwatch.leave()
    clock.now_s += 16
    stopwatch.lap()
    assert stopwatch.seconds == {BETWEEN: 1 + 16, "router": 2 + 8, EXPERTS: 4}


def test_work_behind_a_hand_over_is_of_the_role_that_handed_over(clock: Clock) -> None:
    stopwatch = Stopwatch(lambda: None)
    stopwatch.start()
    for role in ("attention", HAND_OVER, None):
        stopwatch.enter(role)
    clock.now_s += 5
    stopwatch.leave()
    clock.now_s += 3
    stopwatch.leave()
    assert stopwatch.seconds["attention"] == 5
    assert stopwatch.seconds[HAND_OVER] == 3


def test_devices_are_waited_for_before_the_clock_is_read(clock: Clock) -> None:
    """Work that a device still has to do is of the role that queued it."""

    def wait() -> None:
        clock.now_s += 2

    stopwatch = Stopwatch(wait)
    stopwatch.start()
    stopwatch.enter("dense")
    stopwatch.leave()
    assert stopwatch.seconds == {BETWEEN: 2, "dense": 2}


@pytest.mark.parametrize("family", PARTS)
def test_what_a_family_is_made_of_takes_time_and_nothing_else(
    family: str, tmp_path: Path, ticking: Clock
) -> None:
    model = loaded(tmp_path, family)
    with slow_twin():
        assert took_time(timed(model)) == EVERY_FAMILY | PARTS[family]


@pytest.mark.parametrize(
    "where",
    [
        {"layer_devices": ("cuda:0",), "experts_device": "cpu"},
        {"layer_devices": ("cuda:0",), "experts_device": "cuda:0", "linear_device": "cpu"},
        {"layer_devices": ("cuda:0", "cuda:1"), "experts_device": "cuda:0", "linear": None},
    ],
    ids=["experts elsewhere", "linears elsewhere", "layers on two devices"],
)
def test_ways_between_devices_are_hand_overs(
    where: dict[str, Any], tmp_path: Path, ticking: Clock
) -> None:
    model = loaded(tmp_path, **{"linear": "KLinearTorch", **where})
    with slow_twin():
        assert timed(model)[HAND_OVER] > 0


@pytest.mark.parametrize("kernels", [nullcontext, slow_twin], ids=["kernels", "modules"])
def test_roles_add_up_to_the_whole_time(
    kernels: Callable[[], AbstractContextManager[None]], tmp_path: Path, ticking: Clock
) -> None:
    model = loaded(tmp_path)
    with kernels():
        seconds = timed(model, num_tokens=2)
    assert tuple(seconds) == ROLES
    assert 2 * sum(seconds.values()) == pytest.approx(ticking.now_s - 1)


def test_no_more_tokens_are_watched_than_it_says(tmp_path: Path, ticking: Clock) -> None:
    model = loaded(tmp_path)
    with slow_twin():
        assert timed(model, TIMED_TOKENS + 9) == timed(model, TIMED_TOKENS)


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = loaded(tmp_path, layer_devices=("cuda:0", "cuda:1"))
    before = model.prefill([5, 6, 7])
    timed(model)
    model.reset()
    assert torch.equal(model.prefill([5, 6, 7]), before)
    for module in model.root.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "start" not in vars(module)


def test_a_trial_has_the_roles_only_where_it_is_asked_for_them(tiny: TinyModel) -> None:
    request = tiny.request()
    quick = replace(request.measure, quality=False)
    without = run_trial(replace(request, measure=quick)).metrics
    by_role = run_trial(replace(request, measure=replace(quick, by_role=True))).metrics
    assert without is not None
    assert by_role is not None
    assert without.role_seconds == {}
    assert set(by_role.role_seconds) == set(ROLES)
    assert by_role.role_seconds[EXPERTS] > 0
