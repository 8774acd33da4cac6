"""Children of the zoo that answer, die, work for too long or hang; and results that outlive an interruption."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.zoo import children, kept
from tests.zoo.children import LostError, answers
from tests.zoo.kept import Kept, left


def _serve(pipe: Connection, greeting: str) -> None:
    with contextlib.suppress(EOFError):
        while True:
            match pipe.recv():
                case "die":
                    os._exit(3)
                case "work":
                    until = time.process_time() + 60
                    while time.process_time() < until:
                        pass
                case "hang":
                    pipe.poll(None)
                case question:
                    pipe.send((greeting, question, os.getpid()))


def _asked(groups: Sequence[Sequence[str]], processes: int = 1, secs: float = 30.0) -> dict[str, Any]:
    return dict(answers(groups, _serve, ("hello",), secs, processes))


def test_a_group_is_answered_by_one_child() -> None:
    groups = [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    found = _asked(groups, processes=2)
    assert {question: answer[:2] for question, answer in found.items()} == {
        question: ("hello", question) for group in groups for question in group
    }
    assert all(len({found[question][2] for question in group}) == 1 for group in groups)


def test_lost_children_are_replaced_and_say_how_they_were_lost() -> None:
    found = _asked([["a", "die", "b"], ["work", "c"]], secs=3.0)
    assert {question: str(answer) for question, answer in found.items() if isinstance(answer, LostError)} == {
        "die": "the process died (exit code 3)",
        "work": "took more than 3.0 s of processor time",
    }
    assert len({found[question][2] for question in "abc"}) == 3


def test_a_child_that_waits_for_ever_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "STILL_SECS", 2)
    assert str(_asked([["hang"]])["hang"]) == "hangs: no work in 2 s"


def test_results_of_an_interrupted_table_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "table.jsonl"
    table = Kept(file, "options")
    table.keep("a", {"kind": "right"})
    table.keep("b", {"kind": "wrong"})
    with file.open("a") as stream:
        stream.write('["c", {"kin')  # killed here
    again = Kept(file, "options")
    assert again.results == {"a": {"kind": "right"}, "b": {"kind": "wrong"}}
    assert left([["a", "c"], ["b"], ["d"]], again, str) == [["c"], ["d"]]
    again.keep("c", {"kind": "right"})
    assert sorted(Kept(file, "options").results) == ["a", "b", "c"]
    again.finished()
    assert not file.exists()


def test_results_of_other_sources_or_options_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "table.jsonl"
    Kept(file, "options").keep("a", {})
    assert Kept(file, "options").results
    assert not Kept(file, "others").results
    Kept(file, "options").keep("a", {})
    monkeypatch.setattr(kept, "_sources", lambda: "another version")
    assert not Kept(file, "options").results


def test_nothing_is_kept_without_a_file() -> None:
    table = Kept(None)
    table.keep("a", {})
    assert left([["a"], ["b"]], table, str) == [["b"]]
    table.finished()
