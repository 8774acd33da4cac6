"""Pictures of tuning: the latency of a network against seconds, trials and device seconds. They need matplotlib
(``pip install .[bench]``)."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.plots import pyplot, save

Points = Sequence[Mapping[str, Any]]
Picture = Callable[[Path], None]

UNITS = {"secs": "seconds", "trials": "trials", "device_secs": "seconds of the device"}


def quality_pictures(result: Mapping[str, Any], key: str) -> dict[str, Picture]:
    """Return a picture of each network of ``bench time-to-quality``, with a line for each form of both tuners."""
    return {
        _file(key, model): partial(_draw, model, "ms a run", found["curves"], "o")
        for model, found in result["details"]["models"].items()
    }


def method_pictures(result: Mapping[str, Any], key: str) -> dict[str, Picture]:
    """Return a picture of each network of ``bench methods``, with a line for each method: the median over its
    seeds."""
    return {
        _file(key, model): partial(_draw_medians, model, {name: found["curves"] for name, found in methods.items()})
        for model, methods in result["details"]["models"].items()
    }


def _file(key: str, model: str) -> str:
    return f"{key}-{re.sub(r'[^A-Za-z0-9]+', '-', model.rpartition('/')[2])}.svg"


def _draw_medians(model: str, lines: Mapping[str, Sequence[Points]], path: Path) -> None:
    _draw(model, "ms, estimated", lines, "", path, median=True)


def _draw(model: str, latency: str, lines: Mapping[str, Any], marker: str, path: Path, *, median: bool = False) -> None:
    """Draw a plot for each unit that all points have. ``latency``: label of the latency axis. ``lines``: the points of
    each line, by name; with ``median``, a sequence of points for each seed."""
    every = [point for points in lines.values() for point in (points[0] if median else points)]
    units = {unit: words for unit, words in UNITS.items() if all(point.get(unit) is not None for point in every)}
    figure, axes = pyplot().subplots(1, len(units), figsize=(3.4 * len(units), 3.2), sharey=True)
    for plot, (unit, words) in zip(axes, units.items(), strict=True):
        for name, points in lines.items():
            along, milliseconds = median_line(points, unit) if median else line(points, unit)
            plot.step(along, milliseconds, marker, where="post", linewidth=1.0, linestyle="-", markersize=3, label=name)
        plot.set_xlabel(words)
        plot.set_xscale("log")
        plot.grid(visible=True, linewidth=0.3)
    axes[0].set_ylabel(latency)
    axes[0].set_yscale("log")
    axes[-1].legend(fontsize=7)
    axes[0].set_title(model, fontsize=9, loc="left")
    save(figure, path)


def line(points: Points, unit: str) -> tuple[list[float], list[float]]:
    """Return the values of the points in a unit, and their latencies in milliseconds."""
    return [point[unit] for point in points], [1e3 * point["latency"] for point in points]


def median_line(curves: Sequence[Points], unit: str) -> tuple[list[float], list[float]]:
    """Return the values of a unit at which one of the curves changes, from the first value at which all curves have a
    latency, and the median latency in milliseconds at each."""
    begin = max(curve[0][unit] for curve in curves)
    places = sorted({point[unit] for curve in curves for point in curve if point[unit] >= begin})
    at = [
        statistics.median([point["latency"] for point in curve if point[unit] <= place][-1] for curve in curves)
        for place in places
    ]
    return places, [1e3 * latency for latency in at]
