"""Curves of several runs as a table row, and as a plot: medians, and the quartiles around them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np

ENOUGH = 0.95
SHOWN = (10, 20, 30, 60)
_TITLES = (
    "strategy",
    *(f"after {trials}" for trials in SHOWN),
    "trials to 95 %",
    "out of memory",
)
HEADER = f"| {' | '.join(_TITLES)} |\n|{' --- |' * len(_TITLES)}"
COLOURS = ("#999", "#d95f02", "#e7a500", "#1b9e77", "#7570b3", "#66a61e", "#1f78b4", "#e7298a")
WIDTH, HEIGHT, LEFT, TOP = 640, 360, 50, 20
Curves = Sequence[Sequence[float]]


def line(name: str, curves: Curves, memory: Sequence[int]) -> str:
    """Shares of the hypervolume: median over seeds and, in brackets, both quartiles."""
    num_trials = len(curves[0])
    cells = [
        "{1:.2f} [{0:.2f} {2:.2f}]".format(
            *np.quantile([curve[trials - 1] for curve in curves], (0.25, 0.5, 0.75))
        )
        for trials in SHOWN
    ]
    needed = [
        next((i + 1 for i, share in enumerate(curve) if share >= ENOUGH), num_trials + 1)
        for curve in curves
    ]
    middle = median(needed)
    cells.append(f"> {num_trials}" if middle > num_trials else f"{middle:g}")
    cells.append(f"{np.mean(memory):.1f}")
    return f"| {name} | {' | '.join(cells)} |"


def svg(curves: Mapping[str, Curves]) -> str:
    """Median share of the hypervolume over trials, the quartiles shaded."""
    caption = "trials; share of the exhaustive hypervolume, median and quartiles over seeds"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 260}" '
            f'height="{HEIGHT + 70}" font-family="sans-serif" font-size="12">',
            *_axes(len(next(iter(curves.values()))[0])),
            *(
                part
                for number, (name, runs) in enumerate(curves.items())
                for part in _curve(number, name, runs)
            ),
            f'<text x="{LEFT}" y="{TOP + HEIGHT + 40}">{caption}</text></svg>',
        ]
    )


def _axes(num_trials: int) -> Iterator[str]:
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + HEIGHT * (1 - share)
        yield f'<path d="M{LEFT} {y}h{WIDTH}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{share:g}</text>'
    for trial in (1, *range(10, num_trials + 1, 10)):
        x = LEFT + WIDTH * trial / num_trials
        yield f'<text x="{x:.0f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{trial}</text>'


def _curve(
    number: int, name: str, runs: "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
) -> Iterator[str]:
    colour = COLOURS[number % len(COLOURS)]
    low, middle, high = np.quantile(runs, (0.25, 0.5, 0.75), axis=0)
    there, back = _points(low), _points(high)[::-1]
    yield f'<polygon points="{" ".join(there + back)}" fill="{colour}" opacity="0.12"/>'
    yield (
        f'<polyline points="{" ".join(_points(middle))}" fill="none" stroke="{colour}" '
        'stroke-width="2"/>'
    )
    y = TOP + 16 + 18 * number
    yield f'<text x="{LEFT + WIDTH + 14}" y="{y}" fill="{colour}">{name}</text>'


def _points(shares: Sequence[float]) -> list[str]:
    return [
        f"{LEFT + WIDTH * (trial + 1) / len(shares):.1f},{TOP + HEIGHT * (1 - share):.1f}"
        for trial, share in enumerate(shares)
    ]
