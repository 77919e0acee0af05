"""Repeats, their spread, and logits that no speed is worth."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from autoplace.bench.measure import (
    Model,
    NotFiniteError,
    check_logits,
    measure,
)
from autoplace.bench.measurement import Measurement, middle_spread, spread, workload_tokens
from autoplace.bench.worker import Loadable
from autoplace.workload import Workload
from tests.bench.trial_requests import MEASURE, TinyModel


def test_a_spread_is_the_median_with_the_extremes() -> None:
    found = spread([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.low, found.high, found.n) == (2.5, 1.0, 10.0, 4)


def test_the_middle_spread_ignores_one_outlier_in_five() -> None:
    """Quartiles of 1, 1, 1, 1, 9 are 1 and 1; of 1, 2, 3, 4, 5 they are 2 and 4 around 3."""
    assert middle_spread([1, 1, 1, 1, 9]) == 0
    assert middle_spread([5, 4, 3, 2, 1]) == pytest.approx(2 / 3)


def test_one_repeat_has_no_spread() -> None:
    assert middle_spread([1.0]) == float("inf")


@pytest.mark.parametrize(("output_tokens", "num_decoded"), [(1, 1), (2, 1), (32, 31)])
def test_the_first_output_token_comes_out_of_the_prefill(
    output_tokens: int, num_decoded: int
) -> None:
    workload = Workload("w", prompt_tokens=5, output_tokens=output_tokens, context_tokens=64)
    prompt, output = workload_tokens(workload, 100, seed=0)
    assert (len(prompt), len(output)) == (5, num_decoded)
    assert (prompt, output) == workload_tokens(workload, 100, seed=0)
    assert prompt != workload_tokens(workload, 100, seed=1)[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(NotFiniteError, match="1 of 4 logits of the decode are not finite"):
        check_logits(torch.tensor([1.0, 2.0, value, 3.0]), what="decode")


def test_constant_logits_are_refused() -> None:
    with pytest.raises(NotFiniteError, match="all 4 logits of the prefill are the same"):
        check_logits(torch.full((4,), 2.5), what="prefill")


@contextmanager
def running(tiny: TinyModel) -> Iterator[tuple[Model, list[int], list[int]]]:
    loadable = Loadable.of(tiny.request())
    prompt, output = workload_tokens(loadable.request.workload, 512, seed=0)
    with loadable.loaded() as model:
        yield model, prompt, output


def timed(tiny: TinyModel, *, limit_s: float, min_repeats: int, max_repeats: int) -> Measurement:
    settings = replace(MEASURE, min_repeats=min_repeats, max_repeats=max_repeats)
    with running(tiny) as (model, prompt, output):
        return measure(
            model,
            prompt,
            output,
            settings,
            synchronise=lambda: None,
            deadline_s=time.monotonic() + limit_s,
        )


def test_a_measurement_has_as_many_repeats_as_asked_for(tiny: TinyModel) -> None:
    found = timed(tiny, limit_s=100, min_repeats=3, max_repeats=3)
    assert len(found.prefill_s) == len(found.decode_s) == 3
    assert found.num_decoded == 3
    assert not found.cut_short
    assert found.usage.wall_s >= sum(found.prefill_s) + sum(found.decode_s)


def test_after_the_deadline_there_is_one_repeat_and_it_says_so(tiny: TinyModel) -> None:
    found = timed(tiny, limit_s=0, min_repeats=3, max_repeats=3)
    assert len(found.prefill_s) == 1
    assert found.cut_short
