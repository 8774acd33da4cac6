"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table whose first column is text and whose other columns are figures, aligned to the right."""
    align = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, tuple(align), *rows))


def section_link(text: str, key: str) -> str:
    """Return a link from docs/benchmarks.md to the section of the result ``key`` on the page of all tables."""
    return f"[{text}](generated/benchmarks.md#{key})"


def median_and_quartiles(figures: Mapping[str, Any], digits: int = 0) -> str:
    """Return ``median (lower quartile to upper quartile)`` as text."""
    low, mid, high = (figures[key] for key in ("q1", "median", "q3"))
    return f"{mid:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def median_and_range(figures: Mapping[str, Any], scale: float = 1.0, digits: int = 2) -> str:
    """Return ``median (min to max)`` of a spread as text, with the figures multiplied by ``scale``."""
    low, mid, high = (figures[key] * scale for key in ("min", "median", "max"))
    return f"{mid:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
