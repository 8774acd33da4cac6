"""Draws the Pareto front of latency and error from a result of ``bench network-latency --precision``.

``python -m bench.latency.latency_front bench/results/network-latency.json``; needs matplotlib (``pip install
.[bench]``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench.latency.network_latency import front
from bench.plots import IMAGES, pyplot, save
from bench.result import BenchError
from bench.saved_result import read_result


def draw(details: Mapping[str, Any], path: Path) -> None:
    """Draw a point for each precision into ``path``. A line joins the points of the Pareto front.

    Raise BenchError if the result has only one precision.
    """
    points = front(details)
    if len(points) < 2:
        raise BenchError("the result has one precision: run the benchmark with --precision bf16, for example")
    figure, axes = pyplot().subplots(figsize=(4.8, 3.2))
    best: list[tuple[float, float]] = []
    errors = [error for _, _, error in points]
    for number, (name, secs, error) in enumerate(points):
        axes.plot(error, 1e3 * secs, "o", color="#c1272d")
        # Points are sorted by latency, and neighbours are close: their names alternate between the right and the left.
        to_the_left = number % 2 == 1 and error > min(errors)
        side, shift = ("right", -7) if to_the_left else ("left", 7)
        axes.annotate(name, (error, 1e3 * secs), textcoords="offset points", xytext=(shift, -4), ha=side)
        if not best or error < best[-1][0]:
            best.append((error, 1e3 * secs))
    axes.plot(*zip(*best, strict=True), color="#c1272d", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(min(errors) / 3, max(errors) * 20)
    axes.set_ylim(0, 1.15e3 * max(secs for _, secs, _ in points))
    axes.set_xlabel("largest error, relative to the largest output")
    axes.set_ylabel("ms a run")
    axes.set_title(details["model"], fontsize=9)
    axes.grid(visible=True, linewidth=0.3)
    save(figure, path)


@click.command()
@click.argument("result", type=click.Path(exists=True, path_type=Path))
@click.option("--images", type=click.Path(path_type=Path), default=IMAGES, help="Folder for the SVG file.")
def main(result: Path, images: Path) -> None:
    """Draw NAME-front.svg from the saved result NAME.json."""
    path = images / f"{result.stem}-front.svg"
    draw(read_result(result).result["details"], path)
    click.echo(path)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"bench.latency.latency_front: {error}") from error
