"""The table of a decoded token's time: roles that took any, their shares, and both whole times."""

from dataclasses import replace

import pytest
from rich.console import Console

from autoplace.bench.metrics import Metrics, Spread
from autoplace.commands.role_table import role_table

METRICS = Metrics(
    decode_tok_per_s=Spread(200.0, 190.0, 210.0, 3),
    prefill_latency_s=Spread(0.1, 0.1, 0.1, 3),
    prefill_tok_per_s=160.0,
    bytes_by_device={},
    role_seconds={"attention": 0.002, "dense": 0.0, "routed experts": 0.006},
)


def lines(metrics: Metrics) -> list[str]:
    console = Console(width=100, highlight=False)
    with console.capture() as capture:
        console.print(role_table(metrics))
    return capture.get().splitlines()


def test_the_title_has_the_sum_of_the_roles_and_the_time_without_them() -> None:
    assert "(8 ms; 5 ms in the timed ones)" in " ".join(" ".join(lines(METRICS)).split())


@pytest.mark.parametrize(
    ("role", "ms", "share"), [("attention", "2", "25.0%"), ("routed experts", "6", "75.0%")]
)
def test_a_role_has_its_milliseconds_and_its_share_of_the_sum(
    role: str, ms: str, share: str
) -> None:
    (row,) = [line for line in lines(METRICS) if role in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [role, ms, share]


def test_a_role_that_took_no_time_has_no_row() -> None:
    assert not [line for line in lines(METRICS) if "dense" in line]
    took = replace(METRICS, role_seconds={**METRICS.role_seconds, "dense": 0.001})
    assert [line for line in lines(took) if "dense" in line]
