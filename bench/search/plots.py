"""Draws plots from the figures that ``bench replay --out`` and ``bench draft --out`` wrote.

``python -m bench.search.plots --replay bench/results/replay.json --draft bench/results/draft.json``; needs matplotlib
(``pip install .[bench]``). The same figures give the same SVG files, byte for byte.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from bench.processes import ROOT
from bench.result import BenchError
from bench.saved_result import RESULTS, read_result

IMAGES = ROOT / "docs" / "generated"

_COLOURS = {
    "fleet": "#c1272d",
    "bansor": "#0072b2",
    "ansor": "#56b4e9",
    "adatune": "#009e73",
    "autotvm": "#e69f00",
    "random": "#8c8c8c",
}
_OTHER = ("#cc79a7", "#5b4fa2", "#7a5c3e", "#1b7f79")


def pyplot() -> Any:
    """matplotlib's pyplot without a screen, for small files that do not change; :class:`BenchError` without it."""
    try:
        import matplotlib
    except ImportError as error:
        raise BenchError("plots need matplotlib: pip install '.[bench]'") from error
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # Text as text and a fixed salt: the files are small and the same at each run.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fleet-tune", "font.size": 9})
    return plt


def best_so_far(details: dict[str, Any], path: Path) -> None:
    """Plot of the best so far of each method as a share of the best possible, by trials: geometric mean over the
    tasks."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    spare = iter(_OTHER)
    ranked = sorted(details["curves"], key=lambda method: details["overall"][method])
    for method in ranked:
        colour = _COLOURS.get(method) or next(spare)
        width = 2.2 if method == "fleet" else 1.3
        axes.plot(details["curve_trials"], details["curves"][method], color=colour, linewidth=width, label=method)
    axes.axhline(1 / (1 + details["tolerance"]), color="black", linewidth=0.6, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(details["curve_trials"][::2], [str(count) for count in details["curve_trials"][::2]])
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("measured trials of a task")
    axes.set_ylabel("best so far, share of the best speed")
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(frameon=False, loc="lower right")
    save(figure, path)


def predicted_against_measured(details: dict[str, Any], path: Path) -> None:
    """Candidates of every task: what the calibrated draft predicts, and what was measured."""
    plt = pyplot()
    tasks = details["points"]
    columns = min(len(tasks), 4)
    rows = math.ceil(len(tasks) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(1.9 * columns, 1.9 * rows), squeeze=False)
    for axes in grid.flat[len(tasks) :]:
        axes.set_visible(False)
    for axes, (task, pairs) in zip(grid.flat, tasks.items(), strict=False):
        predicted = [1e3 * math.exp(guess) for guess, _ in pairs]
        measured = [1e3 * math.exp(truth) for _, truth in pairs]
        low, high = min(predicted + measured) / 1.3, max(predicted + measured) * 1.3
        axes.plot([low, high], [low, high], color="#8c8c8c", linewidth=0.6)
        axes.plot(predicted, measured, ".", color=_COLOURS["fleet"], markersize=3)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        axes.set_title(task, fontsize=7)
        axes.tick_params(labelsize=6)
    figure.supxlabel("predicted, ms", fontsize=8)
    figure.supylabel("measured, ms", fontsize=8)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a figure as a file that is the same at each run, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot().close(figure)


def _details(path: Path) -> Any:
    return read_result(path).result["details"]


@click.command()
@click.option("--replay", type=click.Path(path_type=Path), default=RESULTS / "replay.json")
@click.option("--draft", type=click.Path(path_type=Path), default=RESULTS / "draft.json")
@click.option("--images", type=click.Path(path_type=Path), default=IMAGES, help="Folder for the SVG files.")
def main(replay: Path, draft: Path, images: Path) -> None:
    """Draws replay.svg and draft.svg."""
    best_so_far(_details(replay), images / "replay.svg")
    predicted_against_measured(_details(draft), images / "draft.svg")
    for name in ("replay.svg", "draft.svg"):
        click.echo(images / name)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"bench.search.plots: {error}") from error
