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


def test_a_machine_that_can_start_no_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    process = WarmProcess("any", "answers", [], {}, answer_secs=60.0)
    with pytest.raises(ChildStartError, match=r"the process that answers cannot be started: .*No such file"):
        process.ask({})
