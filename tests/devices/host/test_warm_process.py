"""What follows a child process that does not start."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from devices.host.warm_process import ChildStartError, WarmProcess

ANSWERS = """
from devices.host.children.child import parent_channel

channel = parent_channel()
channel.send({"ready": True})
while True:
    channel.send({"heard": channel.receive()["said"]})
"""


def test_another_child_follows_one_that_did_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module = tmp_path / "mended_later.py"
    module.write_text("raise SystemExit('not yet')")
    with contextlib.closing(WarmProcess(module.stem, "answers", [], {}, answer_secs=60.0)) as process:
        for _ in range(2):
            with pytest.raises(ChildStartError, match=r"the process that answers did not start: .*not yet"):
                process.ask({"said": "hello"})
        module.write_text(ANSWERS)
        assert process.ask({"said": "hello"}) == {"heard": "hello"}


def test_another_child_takes_the_place_of_one_that_is_killed_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module, starts = tmp_path / "killed.py", tmp_path / "starts"
    killed_until = f"import os, signal\nstarts = open({str(starts)!r}, 'a+')\nstarts.write('.')\nstarts.flush()\n"
    killed_until += "if starts.tell() < {}:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    module.write_text(killed_until.format(3) + ANSWERS)
    with contextlib.closing(WarmProcess(module.stem, "answers", [], {}, answer_secs=60.0)) as process:
        assert process.ask({"said": "hello"}) == {"heard": "hello"}
    starts.unlink()
    module.write_text(killed_until.format(100) + ANSWERS)
    with contextlib.closing(WarmProcess(module.stem, "answers", [], {}, answer_secs=60.0)) as process:
        with pytest.raises(ChildStartError, match="did not start: killed by SIGKILL"):
            process.ask({"said": "hello"})
        assert starts.stat().st_size == 3


def test_a_machine_that_can_start_no_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    process = WarmProcess("any", "answers", [], {}, answer_secs=60.0)
    with pytest.raises(ChildStartError, match=r"the process that answers cannot be started: .*No such file"):
        process.ask({})
