"""How good the predictions of a study were, for its report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoplace.tuner.audit import Audited
from autoplace.tuner.records import TrialRecord


@dataclass(frozen=True)
class Accuracy:
    """Predicted before it was run, against measured."""

    num_trials: int
    decode: float
    """Mean of the absolute relative errors of the decode rate."""
    prefill: float
    """The same of the prefill latency."""
    num_equal_bytes: int
    """Trials whose declared peak is on every device what was predicted, to the byte."""


def accuracy_of(records: Sequence[TrialRecord]) -> Accuracy | None:
    """None where nothing was both predicted and measured."""
    pairs = [record for record in records if record.measured and record.predicted]
    if not pairs:
        return None
    decode = [
        abs(r.predicted["decode_tok_per_s"] / r.metrics.decode_tok_per_s.median - 1) for r in pairs
    ]
    prefill = [
        abs(r.predicted["prefill_latency_s"] / r.metrics.prefill_latency_s.median - 1)
        for r in pairs
    ]
    equal = sum(
        all(
            declared.peak == r.predicted_bytes.get(name, 0)
            for name, declared in r.metrics.bytes_by_device.items()
        )
        for r in pairs
    )
    return Accuracy(len(pairs), sum(decode) / len(pairs), sum(prefill) / len(pairs), equal)


def sentences(
    records: Sequence[TrialRecord],
    learned: Mapping[str, object] | None,
    audit: Sequence[Audited],
) -> Iterator[str]:
    """What the report says of the predictions."""
    accuracy = accuracy_of(records)
    if accuracy is None:
        return
    yield (
        f"Of {accuracy.num_trials} measured trials the decode rate was predicted with a mean error "
        f"of {accuracy.decode:.1%} and the prefill latency with one of {accuracy.prefill:.1%}, "
        f"before any of them was known. The declared peak was equal to the byte in "
        f"{accuracy.num_equal_bytes}."
    )
    if learned is not None:
        yield from _learned(learned)
    if audit:
        false = sum(one.is_false_prune for one in audit)
        confirmed = sum(one.confirms for one in audit)
        yield (
            f"Of {len(audit)} pruned placements that were run, {confirmed} ran out of memory and "
            f"{false} should not have been pruned."
        )


def factors(learned: Mapping[str, object] | None) -> list[tuple[str, str, str]]:
    """Kind of cost, and how many times its predicted time it takes, in decode and prefill."""
    if learned is None:
        return []
    decode, prefill = learned["decode_factors"], learned["prefill_factors"]
    assert isinstance(decode, Mapping)
    assert isinstance(prefill, Mapping)
    return [
        (str(key), _factor(decode.get(key)), _factor(prefill.get(key)))
        for key in sorted({*decode, *prefill})
    ]


def _learned(learned: Mapping[str, object]) -> Iterator[str]:
    decode, prefill = learned["decode_error"], learned["prefill_error"]
    if isinstance(decode, float) and isinstance(prefill, float):
        yield (
            f"Corrected by all other trials, each was predicted with a mean error of {decode:.1%} "
            f"in decode and {prefill:.1%} in prefill."
        )
    doubts = learned["doubts"]
    assert isinstance(doubts, Sequence)
    for doubt in doubts:
        yield f"Suspicious: {doubt}."


def _factor(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "-"
