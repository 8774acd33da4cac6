"""What was emulated is kept for the next run, if the code is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_tune.base.domain import Candidate
from tests.helpers import emulated_log
from tests.helpers.emulated_log import REFUSED, RIGHT, EmulatedLog, main

ONE, TWO, THREE = (Candidate("task", 0, "sketch", (number,)) for number in range(3))


def written(path: Path) -> EmulatedLog:
    log = EmulatedLog(path)
    log.add(ONE, "matmul", "tiling", RIGHT)
    log.add(TWO, "matmul", "tiling", "1 of 16 values differ")
    log.add(THREE, "matmul", "inline", REFUSED)
    return log


def test_the_next_run_emulates_what_is_not_known_and_what_was_wrong(tmp_path: Path) -> None:
    written(tmp_path / "log")
    again = EmulatedLog(tmp_path / "log")
    assert [again.outcome(each) for each in (ONE, TWO, THREE)] == [RIGHT, "", REFUSED]
    again.add(TWO, "matmul", "tiling", RIGHT)
    last = EmulatedLog(tmp_path / "log")
    assert last.outcome(TWO) == RIGHT
    assert last.counts == {("tiling", RIGHT): 2, ("inline", REFUSED): 1}


def test_a_line_that_was_cut_costs_its_candidate_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path)
    path.write_text(path.read_text()[:-5])
    again = EmulatedLog(path)
    assert [again.outcome(each) for each in (ONE, THREE)] == [RIGHT, ""]
    again.add(THREE, "matmul", "inline", RIGHT)
    assert EmulatedLog(path).outcome(THREE) == RIGHT


def test_what_other_code_has_made_is_emulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "log")
    monkeypatch.setattr(emulated_log, "source_digest", lambda: "another")
    assert not EmulatedLog(tmp_path / "log").counts


def test_without_a_file_nothing_is_kept() -> None:
    log = EmulatedLog(None)
    log.add(ONE, "matmul", "tiling", RIGHT)
    assert log.outcome(ONE) == RIGHT
    assert not EmulatedLog(None).outcome(ONE)


def test_right_and_wrong_ones_are_counted_by_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "log")
    main(tmp_path / "log")
    told = ["inline: 0 right, 0 wrong, 1 refused", "tiling: 1 right, 1 wrong, 0 refused", "all: 1 right, 1 wrong"]
    assert capsys.readouterr().out.splitlines() == told
