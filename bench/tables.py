"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table whose first column is text and whose others are figures."""
    align = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, tuple(align), *rows))


def section_link(text: str, key: str) -> str:
    """A link from docs/benchmarks.md to the section of the result ``key`` on the page of all tables."""
    return f"[{text}](generated/benchmarks.md#{key})"


def median_and_quartiles(figures: Mapping[str, Any], digits: int = 0) -> str:
    """``median (lower quartile to upper)``."""
    low, mid, high = (figures[key] for key in ("q1", "median", "q3"))
    return f"{mid:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def median_and_range(figures: Mapping[str, Any], scale: float = 1.0, digits: int = 2) -> str:
    """``median (min to max)`` of a spread."""
    low, mid, high = (figures[key] * scale for key in ("min", "median", "max"))
    return f"{mid:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
