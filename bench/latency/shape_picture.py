"""Picture of ``bench shape-latency``: latency over the extent, with a line for each side. It needs matplotlib (``pip
install .[bench]``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.latency.shape_figures import FIXED, median_of
from bench.plots import pyplot, save
from devices.networks.frameworks.order import OURS

_LABELS = {FIXED: "fixed to each"}


def extent_pictures(result: Mapping[str, Any], key: str) -> dict[str, Callable[[Path], None]]:
    """Return a function by file name that draws the picture of the result ``key`` into a path."""
    return {f"{key}-extents.svg": partial(_draw, result["details"])}


def side_lines(details: Mapping[str, Any]) -> dict[str, tuple[list[int], list[float]]]:
    """Return for each side, by name, the extents at which it runs and its milliseconds there."""
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for each in details["extents"]:
        for side in each["sides"]:
            secs = median_of(each, side)
            if secs is not None:
                along, milliseconds = lines.setdefault(side, ([], []))
                along.append(each["extent"])
                milliseconds.append(1e3 * secs)
    return lines


def _draw(details: Mapping[str, Any], path: Path) -> None:
    figure, axes = pyplot().subplots(figsize=(4.8, 3.4))
    for name, (along, milliseconds) in side_lines(details).items():
        is_ours = name == OURS
        axes.plot(
            along, milliseconds, "o-", linewidth=1.6 if is_ours else 0.9, markersize=3, label=_LABELS.get(name, name)
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(details["dimension"])
    axes.set_ylabel("ms a run")
    axes.set_title(details["model"], fontsize=9, loc="left")
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(fontsize=7)
    save(figure, path)
