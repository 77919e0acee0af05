"""Times a loaded model: prefill of the prompt, decode of the output, repeated until it settles.

Every placement decodes the same seeded tokens, so that all do the same work; each logit vector is
still reduced to its best token before the next one is fed, as a real decode has to.
"""

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from autoplace.bench.measurement import Measurement, settled
from autoplace.bench.request import MeasureSettings
from autoplace.bench.usage import Counters

WARM_UP_TOKENS = 4


class Model(Protocol):
    """What is measured: `HybridModel`, as far as its speed is concerned."""

    def prefill(self, tokens: list[int]) -> Tensor: ...

    def decode(self, token: int) -> Tensor: ...

    def reset(self) -> None: ...


class NotFiniteError(Exception):
    """Logits that no speed is worth: NaN, infinite, or all the same."""


def measure(
    model: Model,
    prompt: list[int],
    output: list[int],
    settings: MeasureSettings,
    *,
    synchronise: Callable[[], None],
    deadline_s: float,
) -> Measurement:
    """Warm up, then repeat. `deadline_s` is on `time.monotonic`'s clock.

    At least one repeat is timed; no repeat starts that would, by the last one, end too late, nor
    any after `min_repeats` while others keep us off the CPUs: more of those would say no more.
    Raise `NotFiniteError` for logits that are not finite or constant.
    """
    _repeat(model, prompt, output[:WARM_UP_TOKENS], synchronise)
    prefill_s: list[float] = []
    decode_s: list[float] = []
    cut_short = False
    before = Counters.now()
    while not settled(prefill_s, decode_s, settings, lambda: before.until(Counters.now())):
        expected_s = prefill_s[-1] + decode_s[-1] if prefill_s else 0.0
        if prefill_s and time.monotonic() + expected_s > deadline_s:
            cut_short = True
            break
        prefilled_s, decoded_s = _repeat(model, prompt, output, synchronise)
        prefill_s.append(prefilled_s)
        decode_s.append(decoded_s)
    usage = before.until(Counters.now())
    return Measurement(tuple(prefill_s), tuple(decode_s), len(output), usage, cut_short)


def _repeat(
    model: Model, prompt: list[int], output: list[int], synchronise: Callable[[], None]
) -> tuple[float, float]:
    """Seconds of one prefill and of decoding `output`. The logits are checked untimed."""
    model.reset()
    synchronise()
    start = time.perf_counter()
    first = model.prefill(prompt)
    int(first.argmax())
    synchronise()
    prefilled = time.perf_counter()
    last = first
    for token in output:
        last = model.decode(token)
        int(last.argmax())
    synchronise()
    decoded = time.perf_counter()
    check_logits(first, what="prefill")
    check_logits(last, what="decode")
    return prefilled - start, decoded - prefilled


def check_logits(logits: Tensor, *, what: str) -> None:
    """Raise `NotFiniteError` for NaN, infinite or constant logits [V]."""
    num_bad = int((~torch.isfinite(logits)).sum())
    if num_bad:
        raise NotFiniteError(f"{num_bad} of {logits.numel()} logits of the {what} are not finite")
    if logits.numel() > 1 and bool((logits == logits.flatten()[0]).all()):
        raise NotFiniteError(f"all {logits.numel()} logits of the {what} are the same")
