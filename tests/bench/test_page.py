"""Pages of figures: what is written on them, and that those of the repository are so."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.benchmark import Benchmark, discover
from bench.gpu import page as gpu_page
from bench.page import (
    BEGIN,
    END,
    SUMMARY_PAGE,
    TABLES_PAGE,
    draw_pictures,
    stale_text,
    summary_text,
    tables_text,
    with_summary,
    write_pages,
)
from bench.result import BenchError
from bench.saved_result import SCHEMA, SavedResult, read_results

SAVED = SavedResult(
    schema=SCHEMA,
    bench="draft",
    label="hosted",
    command="python -m bench draft --save --label hosted",
    commit="0123456789abcdef0123456789abcdef01234567",
    dirty=False,
    date="2026-11-25T15:00:00+00:00",
    duration_secs=61.2,
    machine={"cpu": "a CPU", "cores": 2, "memory_gib": 4.0, "system": "Linux 6"},
    versions={"python": "3.11.0", "numpy": "2.0"},
    dependencies={},
    result={"bench": "draft", "ours": 0.991, "peer": None, "ratio": 1.01, "unit": "Best-1", "details": {}},
)
BENCHMARKS = {"draft": Benchmark("draft", "An example.", (), (), lambda: None, lambda shown: f"ours: {shown['ours']}")}


def test_the_summary_has_a_row_for_each_result_and_names_each_machine_once() -> None:
    other = dataclasses.replace(SAVED, label="", dirty=True, dependencies={"bench/gone.py": "0"})
    text = summary_text([SAVED, other, dataclasses.replace(SAVED, bench="x", machine={**SAVED.machine, "cores": 8})])
    figures, taken = "0.991 |  | 1.01 | Best-1", "2026-11-25, 01234567"
    assert text.splitlines()[2:] == [
        f"| [draft-hosted](generated/benchmarks.md#draft-hosted) | {figures} | A, {taken} |",
        f"| [draft](generated/benchmarks.md#draft) | {figures} | A, {taken} with uncommitted changes |",
        f"| [x-hosted](generated/benchmarks.md#x-hosted) | {figures} | B, {taken} |",
        "",
        "Machine A: a CPU, 2 cores, 4.0 GiB, Linux 6.",
        "",
        "Machine B: a CPU, 8 cores, 4.0 GiB, Linux 6.",
    ]
    assert summary_text([]) == "No results yet."


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    new = with_summary(text, [SAVED])
    assert new.startswith(f"before\n{BEGIN}\n| result |")
    assert new.endswith(f"\n{END}\nafter\n")
    assert with_summary(new, [SAVED]) == new
    with pytest.raises(BenchError, match="no markers <!-- bench:summary -->"):
        with_summary("before", [SAVED])


def test_a_section_has_command_table_code_and_machine(tmp_path: Path) -> None:
    summary, tables = tmp_path / "benchmarks.md", tmp_path / "generated" / "benchmarks.md"
    summary.write_text(f"{BEGIN}\n{END}\n")
    write_pages([SAVED], BENCHMARKS, summary, tables)
    assert tables.read_text() == tables_text([SAVED], BENCHMARKS)
    assert tables.read_text().partition("## ")[2] == (
        "draft-hosted\n\n`python -m bench draft --save --label hosted`\n\nours: 0.991\n\n"
        "Taken on 2026-11-25 in 61 s at commit 01234567.\n\n"
        "a CPU, 2 cores, 4.0 GiB, Linux 6. python 3.11.0, numpy 2.0.\n"
    )


def test_pictures_are_drawn_for_each_result_and_stand_in_its_section(tmp_path: Path) -> None:
    def pictures(shown: Mapping[str, Any], key: str) -> dict[str, Callable[[Path], None]]:
        assert shown == SAVED.result
        return {f"{key}-{name}.svg": lambda path: path.write_text("<svg/>") and None for name in ("a", "b")}

    drawn = {"draft": dataclasses.replace(BENCHMARKS["draft"], pictures=pictures)}
    assert "](draft" not in tables_text([SAVED], drawn, tmp_path)
    assert draw_pictures([SAVED], drawn, tmp_path) == ["draft-hosted-a.svg", "draft-hosted-b.svg"]
    (tmp_path / "draft-hosted-b.svg").unlink()
    text = tables_text([SAVED], drawn, tmp_path)
    assert "ours: 0.991\n\n![Curves of draft-hosted-a](draft-hosted-a.svg)\n\nTaken on" in text


def test_results_whose_code_has_changed_are_listed_with_their_command() -> None:
    changed = dataclasses.replace(SAVED, label="", dependencies={"bench/gone.py": "0"})
    assert stale_text([SAVED]) == "No result is older than its code."
    assert stale_text([SAVED, changed]).splitlines()[1:] == [f"draft: 1 of its files, {SAVED.command}"]


def test_a_change_of_the_code_does_not_change_the_pages() -> None:
    changed = dataclasses.replace(SAVED, dependencies={"bench/gone.py": "0"})
    assert summary_text([changed]) == summary_text([SAVED])
    assert tables_text([changed], BENCHMARKS) == tables_text([SAVED], BENCHMARKS)


def test_a_result_without_a_benchmark_or_of_another_version_is_refused() -> None:
    with pytest.raises(BenchError, match=r"draft-hosted.json: there is no benchmark 'draft': remove the file"):
        tables_text([SAVED], {})

    def table(_shown: object) -> str:
        raise KeyError("lines")

    changed = {"draft": dataclasses.replace(BENCHMARKS["draft"], table=table)}
    with pytest.raises(BenchError, match=r"of another version .* run it again: python -m bench draft"):
        tables_text([SAVED], changed)


def test_the_pages_are_what_the_results_give() -> None:
    """No figure is typed by hand."""
    results, text = read_results(), SUMMARY_PAGE.read_text()
    then = "run python -m bench docs"
    assert text == with_summary(text, results), then
    assert TABLES_PAGE.read_text() == tables_text(results, discover()), then
    assert gpu_page.PAGE.read_text() == gpu_page.page(), then


def test_no_table_of_figures_stands_outside_the_markers() -> None:
    text = SUMMARY_PAGE.read_text()
    typed = text.partition(BEGIN)[0] + text.partition(END)[2]
    assert [line for line in typed.splitlines() if re.match(r"\|.*\d", line)] == []
