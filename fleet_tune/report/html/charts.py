"""Line charts as SVG, without scripts and readable without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

Point = tuple[float, float]

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 12, 12, 40
_STEPS = (1.0, 2.0, 5.0, 10.0)
_TICKS = 5


def step_chart(
    points: Sequence[Point], title: str, x_label: str, x_text: Callable[[float], str], y_text: Callable[[float], str]
) -> str:
    """Return an SVG element of a value that changes in steps: each holds until the next one. The y axis begins at 0.

    Args:
        points: x and y, by x; at least one.
        title: what readers hear who do not see the picture.
        x_label: name of the x axis.
        x_text: text of an x.
        y_text: text of a y.
    """
    most_x = max(points[-1][0], 1e-9)
    most_y = max(y for _, y in points) * 1.05
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> str:
        return f"{_LEFT + width * x / most_x:.1f}"

    def down(y: float) -> str:
        return f"{_TOP + height * (1 - y / most_y):.1f}"

    def place(x: float, y: float) -> str:
        return f"{across(x)},{down(y)}"

    corners = [place(*points[0])]
    for (_, before), (x, y) in pairwise(points):
        corners += [place(x, before), place(x, y)]
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for value in ticks(most_y):
        at = down(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at}" dy="4" text-anchor="end">{escape(y_text(value))}</text>')
    for value in ticks(most_x):
        place_of_text = f'x="{across(value)}" y="{_HEIGHT - 22}" text-anchor="middle"'
        parts.append(f"<text {place_of_text}>{escape(x_text(value))}</text>")
    middle = _LEFT + width / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(f'<polyline class="curve" points="{" ".join(corners)}"/>')
    # A curve that begins with the last value has no length.
    parts.append(f'<circle cx="{across(points[0][0])}" cy="{down(points[0][1])}" r="3"/></svg>')
    return "".join(parts)


def ticks(most: float) -> list[float]:
    """Return a few round numbers from 0 to ``most``, which is positive."""
    rough = most / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * (1 - 1e-9))
    return [number * step for number in range(int(most / step + 1e-9) + 1)]
