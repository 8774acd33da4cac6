"""The latency of a network over the extents of a dynamic dimension as SVG, readable without colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fleet_tune.report.html.charts import DASHES
from fleet_tune.report.words import format_secs

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 130, 12, 40
_LETTER = 14


def extent_chart(series: Mapping[str, Sequence[tuple[int, float]]], dimension: str) -> str:
    """Return an SVG element with a line for each framework: its seconds, on a logarithmic axis, over the extents, which
    are equally spaced.

    Args:
        series: extents and seconds of each framework; at least one framework has a point.
        dimension: name of the dimension.
    """
    extents = sorted({extent for points in series.values() for extent, _ in points})
    secs = [each for points in series.values() for _, each in points]
    values = _round_numbers(min(secs), max(secs))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(extent: int) -> float:
        return _LEFT + width * extents.index(extent) / max(1, len(extents) - 1)

    def down(value: float) -> float:
        return _TOP + height * (1 - math.log(value / values[0]) / math.log(values[-1] / values[0]))

    title = escape(f"Latency of each framework over {dimension}")
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">']
    for value in values:
        at = f"{down(value):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at}" dy="4" text-anchor="end">{escape(format_secs(value))}</text>')
    for extent in extents:
        place = f'x="{across(extent):.1f}" y="{_HEIGHT - 22}" text-anchor="middle"'
        parts.append(f"<text {place}>{extent}</text>")
    middle = _LEFT + width / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(dimension)}</text>')
    ends = _apart({name: down(points[-1][1]) for name, points in series.items() if points})
    for number, (name, points) in enumerate(series.items()):
        if not points:
            continue
        dashes = DASHES[number % len(DASHES)]
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        line = " ".join(f"{across(extent):.1f},{down(value):.1f}" for extent, value in points)
        parts.append(f'<polyline class="curve"{dashed} points="{line}"/>')
        for extent, value in points:
            told = f"<title>{escape(name)}, {escape(dimension)} = {extent}: {escape(format_secs(value))}</title>"
            parts.append(f'<circle cx="{across(extent):.1f}" cy="{down(value):.1f}" r="3">{told}</circle>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 8}" y="{ends[name]:.1f}" dy="4">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _round_numbers(least: float, most: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten from one that is not above ``least`` to one that is not below ``most``."""
    powers = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    numbers = [float(f"{step}e{power}") for power in powers for step in (1, 2, 5)]
    first = max(at for at, number in enumerate(numbers) if number <= least)
    last = min(at for at, number in enumerate(numbers) if number >= most)
    return numbers[first : max(last, first + 1) + 1]


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Return the heights of names beside the ends of their lines, moved down so that no two names overlap."""
    placed: dict[str, float] = {}
    last = -math.inf
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        last = placed[name] = max(height, last + _LETTER)
    return placed
