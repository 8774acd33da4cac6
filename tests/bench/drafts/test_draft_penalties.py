"""Pruner's table 10 on recorded candidates."""

from __future__ import annotations

from pathlib import Path

from bench.drafts.draft_penalties import BENCHMARK, KEPT, run

DATA = Path(__file__).parents[3] / "bench" / "data" / "grouped" / "znver5-1.ftd"


def test_more_is_better_and_no_scorer_beats_the_best() -> None:
    details = run(DATA).details
    assert len(details["tasks"]) == 6
    for line in details["best_1"].values():
        kept = [line[str(each)] for each in KEPT]
        assert kept == sorted(kept)
        assert kept[0] > 0
        assert kept[-1] <= 1
    lines = details["best_1"]
    assert len({tuple(line.values()) for line in lines.values()}) == len(lines)
    assert all(lines["our analyzer"][str(each)] > lines["chance"][str(each)] for each in KEPT)
    text = BENCHMARK.table({"details": details})
    assert "without memory penalties" in text
