"""Tables in Markdown."""

from __future__ import annotations

from bench.tables import markdown


def test_figures_are_aligned_to_the_right() -> None:
    assert markdown(("what", "s"), [("a", "1")]) == "| what | s |\n| --- | ---: |\n| a | 1 |"
