"""The hook of the service, a program of the user's."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from fleet_tune.base.config.retune_file import load_retune
from fleet_tune.retuning import children
from fleet_tune.retuning.children import ProcessStepRunner
from fleet_tune.retuning.step_runner import StoppedError
from tests.helpers.waiting import wait_until

TEXT = """\
folder = "kept"
[[network]]
name = "net"
path = "net.onnx"
calls_per_day = 1000
"""


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def runner(tmp_path: Path, stop: threading.Event) -> ProcessStepRunner:
    file = tmp_path / "retune.toml"
    file.write_text(TEXT)
    return ProcessStepRunner(load_retune(file), stop)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_what_it_is_told_and_how_it_ended(runner: ProcessStepRunner, tmp_path: Path) -> None:
    assert runner.hook(["sh", "-c", f'echo "$ABOUT" > {tmp_path}/told'], {"ABOUT": "version 3"}) == ""
    assert (tmp_path / "told").read_text() == "version 3\n"
    assert runner.hook(["sh", "-c", "echo no space; exit 3"], {}) == "it ended with code 3: no space"
    assert runner.hook(["no-such-program"], {}) == "no-such-program: No such file or directory"


def test_a_server_that_it_starts_is_not_waited_for_and_lives_on(runner: ProcessStepRunner, tmp_path: Path) -> None:
    assert runner.hook(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid"], {}) == ""
    server = int((tmp_path / "pid").read_text())
    assert is_alive(server)
    os.kill(server, signal.SIGKILL)


def test_one_that_hangs_is_ended_with_all_that_it_started(
    runner: ProcessStepRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "HOOK_SECS", 0.5)
    told = runner.hook(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; wait"], {})
    assert told == "it took more than 0.5 s"
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())), "its child ends", 30)


def test_it_ends_with_the_service_and_is_told_again(runner: ProcessStepRunner, stop: threading.Event) -> None:
    stop.set()
    with pytest.raises(StoppedError):
        runner.hook(["sleep", "300"], {})
