"""Pieces of a long benchmark: what is kept, what is done again, and what a sitting does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.result import BenchError
from bench.tuning.pieces import Piece, Sitting, commits


@dataclass(frozen=True)
class Half(Piece):
    """A run that leaves a file, and fails where it finds one."""

    secs: float

    @property
    def name(self) -> str:
        return f"half of {self.secs:g} s"

    @property
    def expected_secs(self) -> float:
        return self.secs

    def take(self) -> dict[str, Any]:
        left = self.folder / "left"
        assert not left.exists()
        left.write_text("")
        return {"secs": self.secs}


def _halves(folder: Path, *secs: float) -> list[Half]:
    return [Half("m", folder / f"{each:g}", each) for each in secs]


def test_a_run_that_did_not_end_begins_anew(tmp_path: Path) -> None:
    [piece] = _halves(tmp_path, 1.0)
    piece.folder.mkdir()
    (piece.folder / "left").write_text("of an interrupted run")
    assert Sitting().run([piece])
    assert piece.figures() == {"secs": 1.0}
    assert [len(commit) for commit in commits([piece])] == [40]


def test_a_run_with_other_settings_is_made_again(tmp_path: Path) -> None:
    assert Sitting().run([Half("m", tmp_path / "a", 1.0)])
    other = Half("m", tmp_path / "a", 2.0)
    assert not other.is_done
    assert Sitting().run([other])
    assert other.figures() == {"secs": 2.0}


def test_a_sitting_ends_after_so_many_pieces_of_all_kinds_and_names_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = _halves(tmp_path, 60.0, 120.0), _halves(tmp_path, 240.0)
    sitting = Sitting(most=2)
    assert sitting.run(first)
    assert not sitting.run(second)
    assert "missing, about 4 minutes (the same command goes on):\n  half of 240 s\n" in capsys.readouterr().err
    assert not second[0].is_done
    assert Sitting(most=1).run([*first, *second]), "what is done does not count"


def test_a_sitting_begins_no_piece_that_would_end_too_late(tmp_path: Path) -> None:
    pieces = _halves(tmp_path, 900.0, 7200.0, 60.0)
    assert not Sitting(secs=3600.0).run(pieces)
    assert [each.is_done for each in pieces] == [True, False, True]


def test_pieces_are_made_anew_once(tmp_path: Path) -> None:
    pieces = _halves(tmp_path, 1.0, 2.0)
    assert Sitting().run(pieces)
    kept = [piece.file.stat().st_mtime_ns for piece in pieces]
    sitting = Sitting(anew=True)
    assert sitting.run(pieces)
    made = [piece.file.stat().st_mtime_ns for piece in pieces]
    assert not set(made) & set(kept)
    assert sitting.run(pieces)
    assert [piece.file.stat().st_mtime_ns for piece in pieces] == made


@pytest.mark.parametrize("limit", [{"most": 1}, {"secs": 3600.0}])
def test_pieces_made_anew_have_no_limit(limit: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="--anew with --pieces or --sitting-secs would begin again each time"):
        Sitting(**limit, anew=True)
