"""Results that are kept at once, and survive the end of their writer."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.kept_lines import KeptLines


def test_what_was_added_is_there_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "kept.jsonl"
    kept = KeptLines(path)
    kept.add("a", {"secs": 1.0})
    kept.add("b", {"secs": None})
    assert dict(KeptLines(path).found) == {"a": {"secs": 1.0}, "b": {"secs": None}}


def test_a_line_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    KeptLines(path).add("a", {"n": 1})
    with path.open("a") as file:
        file.write('{"key": "b", "val')
    kept = KeptLines(path)
    assert dict(kept.found) == {"a": {"n": 1}}
    kept.add("b", {"n": 2})
    assert dict(KeptLines(path).found) == {"a": {"n": 1}, "b": {"n": 2}}
