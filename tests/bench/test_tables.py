"""The page of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.benchmark import Benchmark
from bench.result import BenchError, BenchResult
from bench.tables import markdown, replace_table, write_table


def test_only_the_marked_table_is_replaced() -> None:
    text = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\n<!-- bench:y -->\nkept\n<!-- /bench:y -->\n"
    new = replace_table(text, "x", "| new |\n")
    assert new == text.replace("old", "| new |")
    assert replace_table(new, "x", "| new |\n") == new
    with pytest.raises(BenchError, match="bench:z"):
        replace_table(text, "z", "")


def test_a_benchmarks_part_is_its_command_its_table_and_the_machine(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench:x -->\n<!-- /bench:x -->\nafter\n")
    machine = {
        "cpu": "a CPU",
        "cores": 2,
        "memory_gib": 4.0,
        "system": "Linux 6",
        "python": "3.11.0",
        "versions": {"numpy": "2.0"},
    }
    result = BenchResult("x", 2.0, None, None, "s")
    benchmark = Benchmark("x", "An example.", (), (), lambda: result, lambda shown: f"ours: {shown['ours']}")
    write_table(page, benchmark, {"ours": 2.0, "details": {"machine": machine}}, "python -m bench x")
    assert page.read_text() == (
        "before\n<!-- bench:x -->\n`python -m bench x`\n\nours: 2.0\n\n"
        "a CPU, 2 cores, 4.0 GiB, Linux 6, Python 3.11.0, numpy 2.0.\n<!-- /bench:x -->\nafter\n"
    )


def test_figures_are_aligned_to_the_right() -> None:
    assert markdown(("what", "s"), [("a", "1")]) == "| what | s |\n| --- | ---: |\n| a | 1 |"
