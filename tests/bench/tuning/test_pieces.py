"""Pieces of a long benchmark: what is kept, what is done again, and what a sitting does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bench.result import BenchError
from bench.tuning.pieces import Piece, Sitting, models_option, sources, sources_text, work_folder
from fleet_tune.base.records.files.lock_file import LockedError, take_lock


@dataclass(frozen=True)
class Half(Piece):
    """A run that leaves a file, and fails where it finds one, or has a negative time."""

    secs: float

    @property
    def name(self) -> str:
        return f"half of {self.secs:g} s"

    @property
    def expected_secs(self) -> float:
        return self.secs

    def take(self) -> dict[str, Any]:
        if self.secs < 0:
            raise BenchError("the tuner ended")
        left = self.place / "left"
        assert not left.exists()
        left.write_text("")
        return {"secs": self.secs}


def _halves(folder: Path, *secs: float) -> list[Half]:
    return [Half("m", folder / f"{each:g}", each) for each in secs]


def test_a_run_that_did_not_end_begins_anew(tmp_path: Path) -> None:
    [piece] = _halves(tmp_path, 1.0)
    piece.place.mkdir()
    (piece.place / "left").write_text("of an interrupted run")
    assert Sitting().run([piece])
    assert piece.figures() == {"secs": 1.0}


def test_a_run_says_where_it_was_made(tmp_path: Path) -> None:
    pieces = _halves(tmp_path, 1.0, 2.0)
    assert Sitting().run(pieces)
    [source] = sources(pieces)
    assert (len(source["commit"]), source["cores"] > 0) == (40, True)
    assert sources_text([source]).startswith(f"Runs were made at {source['commit'][:8]} (")


def test_commits_are_told_by_machine() -> None:
    found = [{"commit": f"{at}" * 40, "cpu": cpu, "cores": 2} for at, cpu in ((1, "Zen 4"), (2, "Zen 5"), (3, "Zen 4"))]
    told = "Runs were made at 11111111, 33333333 (Zen 4, 2 cores); at 22222222 (Zen 5, 2 cores)."
    assert sources_text(found) == told


def test_a_run_with_other_settings_is_another_run(tmp_path: Path) -> None:
    first, other = (Half("m", tmp_path / "a", secs) for secs in (1.0, 2.0))
    assert Sitting().run([first])
    assert not other.is_done
    assert Sitting().run([other])
    assert (first.figures(), other.figures()) == ({"secs": 1.0}, {"secs": 2.0})


def test_a_run_that_fails_ends_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pieces = _halves(tmp_path, 1.0, -2.0, 3.0)
    with pytest.raises(
        BenchError, match="1 of 3 runs failed: leave their models out, or give the same command"
    ) as told:
        Sitting().run(pieces)
    assert "half of -2 s: the tuner ended" in str(told.value)
    assert "\n  half of -2 s\n" in capsys.readouterr().err, "it is missing"
    assert [each.is_done for each in pieces] == [True, False, True]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    [piece] = _halves(tmp_path, 1.0)
    assert Sitting().run([piece])
    piece.file.write_text(piece.file.read_text()[:-9])
    with pytest.raises(BenchError, match=r"figures.json is damaged .*: remove it, and give the same command again"):
        piece.figures()


def test_one_command_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    with work_folder(tmp_path / "work"):
        with pytest.raises(LockedError):
            take_lock(tmp_path / "work/lock")
        with pytest.raises(BenchError, match=r"is used by process .*: wait for it, or give another --work"):
            work_folder(tmp_path / "work").__enter__()
    with work_folder(tmp_path / "work"):
        pass


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ("examples/networks.py:small_cnn", ""),
        ("examples/networks.py:small_cnn,examples/none.py:net", "examples/none.py:net: there is no file"),
        ("examples/networks.py:nothing", "not of the form file.py:function; examples/networks.py has"),
        ("examples/networks.py", "not of the form file.py:function"),
        ("examples/networks.py:small_cnn,examples/networks.py:small_cnn", "a network is named twice"),
    ],
)
def test_models_that_do_not_exist_are_refused_at_once(models: str, told: str) -> None:
    command = click.Command("bench", params=[models_option("")], callback=lambda models: click.echo(models))
    found = CliRunner().invoke(command, ["--models", models])
    assert (found.exit_code, told in found.output) == (2 if told else 0, True)


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
