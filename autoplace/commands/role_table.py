"""The table of a decoded token's time by role."""

from rich.table import Table

from autoplace.bench.metrics import Metrics
from autoplace.commands.output import table


def role_table(metrics: Metrics) -> Table:
    """Roles that took any time, in the order of a layer, and their sum."""
    total_s = sum(metrics.role_seconds.values())
    timed_s = 1 / metrics.decode_tok_per_s.median
    rows = table(
        "a decoded token by role, in steps of their own "
        f"({_ms(total_s)} ms; {_ms(timed_s)} ms in the timed ones)",
        *("role", "ms", "share"),
    )
    for role, seconds in metrics.role_seconds.items():
        if seconds > 0:
            rows.add_row(role, _ms(seconds), f"{seconds / total_s:.1%}")
    return rows


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"
