"""Plots as small SVG files. The same figures give the same file, byte for byte. Plots need matplotlib (the extra
``bench``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.processes import ROOT
from bench.result import BenchError

IMAGES = ROOT / "docs" / "generated"


def pyplot() -> Any:
    """Return matplotlib's pyplot, set up for small, reproducible files and no screen. Raises :class:`BenchError` if
    matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise BenchError("plots need matplotlib: pip install '.[bench]'") from error
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # Text that is stored as text keeps the files small. A fixed salt makes them the same in each run.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fleet-tune", "font.size": 9})
    return plt


def save(figure: Any, path: Path) -> None:
    """Write a figure to a file that is the same in each run, and close the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot().close(figure)
