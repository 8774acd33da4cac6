"""Draws the curves of a result of ``bench methods``: estimated latency against seconds and against trials.

``python -m bench.tuning.method_curves bench/results/methods.json``; needs matplotlib (``pip install .[bench]``).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.plots import IMAGES, pyplot, save
from bench.result import BenchError
from bench.saved_result import read_result

_UNITS = {"secs": "seconds", "trials": "trials"}


def draw(details: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """Draw a picture for each network, with a line for each method: the median over its seeds from where all have a
    latency. Return their files."""
    paths = []
    for model, methods in details["models"].items():
        figure, axes = pyplot().subplots(1, 2, figsize=(9.0, 3.2), sharey=True)
        for plot, (unit, words) in zip(axes, _UNITS.items(), strict=True):
            for method, found in methods.items():
                plot.step(*_median(found["curves"], unit), where="post", linewidth=1.0, label=method)
            plot.set_xlabel(words)
            plot.set_xscale("log")
            plot.grid(visible=True, linewidth=0.3)
        axes[0].set_ylabel("ms, estimated")
        axes[0].set_yscale("log")
        axes[1].legend(fontsize=7)
        axes[0].set_title(model, fontsize=9, loc="left")
        path = folder / f"{name}-{re.sub(r'[^A-Za-z0-9]+', '-', model)}.svg"
        save(figure, path)
        paths.append(path)
    return paths


def _median(curves: Sequence[Sequence[Mapping[str, float]]], unit: str) -> tuple[list[float], list[float]]:
    """Return the places where a curve changes, and the median of the curves' milliseconds there."""
    begin = max(curve[0][unit] for curve in curves)
    places = sorted({point[unit] for curve in curves for point in curve if point[unit] >= begin})
    at = [
        statistics.median([point["latency"] for point in curve if point[unit] <= place][-1] for curve in curves)
        for place in places
    ]
    return places, [1e3 * latency for latency in at]


@click.command()
@click.argument("result", type=click.Path(exists=True, path_type=Path))
@click.option("--images", type=click.Path(path_type=Path), default=IMAGES, help="Folder for the SVG files.")
def main(result: Path, images: Path) -> None:
    """Draws a picture for each network of a saved result."""
    for path in draw(read_result(result).result["details"], images, result.stem):
        click.echo(path)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"bench.tuning.method_curves: {error}") from error
