"""Plots as small SVG files: the same figures give the same file, byte for byte. They need matplotlib (the extra
``bench``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.processes import ROOT
from bench.result import BenchError

IMAGES = ROOT / "docs" / "generated"


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


def save(figure: Any, path: Path) -> None:
    """Write a figure as a file that is the same at each run, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot().close(figure)
