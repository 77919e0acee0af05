"""Which measured placements no other beats in both objectives, and which serves a workload best."""

from collections.abc import Sequence

from autoplace.tuner.records import TrialRecord
from autoplace.workload import Workload


def candidates(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Records that may be picked: measured, within memory and within the quality guard."""
    return [record for record in records if record.measured and record.feasible]


def pareto_front(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Records that no other dominates: more tokens/s in decode, less prefill latency.

    Fastest decode first. Of records with the same two values the earliest stays.
    """
    front: list[TrialRecord] = []
    best_latency = float("inf")
    for record in sorted(records, key=_by_decode):
        latency = record.metrics.prefill_latency_s.median
        if latency < best_latency:
            front.append(record)
            best_latency = latency
    return front


def best_of(records: Sequence[TrialRecord], workload: Workload) -> list[TrialRecord]:
    """Records by the workload's time, the best first."""
    return sorted(records, key=lambda record: (request_s(record, workload), record.number))


def request_s(record: TrialRecord, workload: Workload) -> float:
    return workload.request_s(
        prefill_latency_s=record.metrics.prefill_latency_s.median,
        decode_tok_per_s=record.metrics.decode_tok_per_s.median,
    )


def _by_decode(record: TrialRecord) -> tuple[float, float, int]:
    metrics = record.metrics
    return -metrics.decode_tok_per_s.median, metrics.prefill_latency_s.median, record.number
