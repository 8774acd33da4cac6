"""Pieces of a long benchmark: what is kept, what is done again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tuning.pieces import Piece, commits, run_missing


@dataclass(frozen=True)
class Half(Piece):
    """A run that leaves a file, and fails where it finds one."""

    secs: float

    @property
    def name(self) -> str:
        return f"half of {self.secs:g} s"

    def tune(self) -> dict[str, Any]:
        left = self.folder / "left"
        assert not left.exists()
        left.write_text("")
        return {"secs": self.secs}


def test_a_run_that_did_not_end_begins_anew(tmp_path: Path) -> None:
    piece = Half("m", tmp_path / "a", 1.0)
    piece.folder.mkdir()
    (piece.folder / "left").write_text("of an interrupted run")
    assert run_missing([piece], 0)
    assert piece.figures() == {"secs": 1.0}
    assert [len(commit) for commit in commits([piece])] == [40]


def test_a_run_with_other_settings_is_made_again(tmp_path: Path) -> None:
    assert run_missing([Half("m", tmp_path / "a", 1.0)], 0)
    other = Half("m", tmp_path / "a", 2.0)
    assert not other.is_done
    assert run_missing([other], 0)
    assert other.figures() == {"secs": 2.0}
