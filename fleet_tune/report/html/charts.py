"""Line charts and timelines as SVG, without scripts and readable without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

Point = tuple[float, float]

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 12, 12, 40
_STEPS = (1.0, 2.0, 5.0, 10.0)
_TICKS = 5
DASHES = ("", "8 4", "2 4", "8 4 2 4", "16 4")
"""Dashes of the lines of one chart, so that they differ without colour."""
_ROW = 28


def step_chart(
    series: Mapping[str, Sequence[Point]],
    title: str,
    x_label: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> str:
    """Return an SVG element of values that change in steps: each holds until the next one. The y axis begins at 0.

    Args:
        series: the points (x, y) of each line in order of x, by its name; at least one point for each. The lines differ
            in their dashes. If there are several, each has its name beside its end.
        title: text for screen readers.
        x_label: name of the x axis.
        x_text: text of an x.
        y_text: text of a y.
    """
    most_x = max(1e-9, *(points[-1][0] for points in series.values()))
    most_y = max(y for points in series.values() for _, y in points) * 1.05
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> str:
        return f"{_LEFT + width * x / most_x:.1f}"

    def down(y: float) -> str:
        return f"{_TOP + height * (1 - y / most_y):.1f}"

    def place(x: float, y: float) -> str:
        return f"{across(x)},{down(y)}"

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
    for number, (name, points) in enumerate(series.items()):
        corners = [place(*points[0])]
        for (_, before), (x, y) in pairwise(points):
            corners += [place(x, before), place(x, y)]
        dashes = DASHES[number % len(DASHES)]
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<polyline class="curve"{dashed} points="{" ".join(corners)}"/>')
        # A curve that begins with the last value has no length.
        parts.append(f'<circle cx="{across(points[0][0])}" cy="{down(points[0][1])}" r="3"/>')
        if len(series) > 1:
            x, y = points[-1]
            parts.append(f'<text x="{across(x)}" y="{down(y)}" dy="-5" text-anchor="end">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class TimelineRow:
    """One device on a timeline."""

    name: str
    busy: Sequence[tuple[float, float]]
    """Begin and end of the times in which it worked, in seconds."""
    events: Sequence[tuple[float, str]]
    """Second and text of each of its events."""


def timeline(rows: Sequence[TimelineRow], end: float, title: str, x_text: Callable[[float], str]) -> str:
    """Return an SVG element with a row for each device: bars for the times in which it worked, and a line for each
    event, which shows its text under the pointer. The axis goes from second 0 to ``end``, which is positive."""
    width, height = _WIDTH - _LEFT - _RIGHT, _ROW * len(rows)

    def across(x: float) -> str:
        return f"{_LEFT + width * min(max(x, 0.0), end) / end:.1f}"

    parts = [f'<svg viewBox="0 0 {_WIDTH} {height + 24}" role="img" aria-label="{escape(title)}">']
    for number, row in enumerate(rows):
        top = number * _ROW
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 16}" text-anchor="end">{escape(row.name)}</text>')
        for begin, until in row.busy:
            wide = max(0.5, float(across(until)) - float(across(begin)))
            parts.append(f'<rect class="busy" x="{across(begin)}" y="{top + 4}" width="{wide:.1f}" height="16"/>')
        for at, text in row.events:
            line = f'x1="{across(at)}" x2="{across(at)}" y1="{top}" y2="{top + 24}"'
            parts.append(f'<line class="event" {line}><title>{escape(text)}</title></line>')
    for value in ticks(end):
        parts.append(f'<text x="{across(value)}" y="{height + 16}" text-anchor="middle">{escape(x_text(value))}</text>')
    return "".join([*parts, "</svg>"])


def ticks(most: float) -> list[float]:
    """Return a few round numbers from 0 to ``most``, which is positive."""
    rough = most / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * (1 - 1e-9))
    return [number * step for number in range(int(most / step + 1e-9) + 1)]
