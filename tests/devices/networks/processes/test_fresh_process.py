"""What the end of a network's process says of the network: only a crash of its own is its fault."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices.networks.processes import fresh_process
from fleet_tune.base.errors import NetworkRunError, UncheckedError

INPUTS = (np.zeros(4, np.float32),)


def ends_with(monkeypatch: pytest.MonkeyPatch, code: int, told: str = "") -> None:
    done = subprocess.CompletedProcess([], code, "", told)
    monkeypatch.setattr("devices.networks.processes.fresh_process.subprocess.run", lambda *_, **__: done)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS])
def test_a_crash_is_the_networks_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    ends_with(monkeypatch, -number)
    with pytest.raises(NetworkRunError, match=signal.Signals(number).name):
        fresh_process.outputs_of(tmp_path, INPUTS)


def test_so_is_an_error_that_it_raises_when_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ends_with(monkeypatch, 70, "CUDA: an illegal memory access was encountered")
    with pytest.raises(NetworkRunError, match="illegal memory access"):
        fresh_process.measure(tmp_path, INPUTS, 1.0)


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGTERM, 1])
def test_another_end_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int) -> None:
    ends_with(monkeypatch, code, "No space left on device")
    with pytest.raises(UncheckedError):
        fresh_process.outputs_of(tmp_path, INPUTS)


def test_what_cannot_be_loaded_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(UncheckedError, match="OutputFolderError"):
        fresh_process.outputs_of(tmp_path / "missing", INPUTS)


def test_neither_does_one_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fresh_process, "_TIMEOUT_SECS", 0.01)
    with pytest.raises(UncheckedError, match=r"within 0\.01 s"):
        fresh_process.outputs_of(tmp_path, INPUTS)


@pytest.mark.parametrize(
    ("second_secs", "budgets", "found"),
    [(2.0, [3.0, 3.0], (1.0, 2.0)), (1.1, [3.0, 3.0, 1.0, 1.0, 1.0, 1.0], (0.9, 1.0))],
    ids=["clear", "near"],
)
def test_networks_that_are_near_each_other_are_timed_in_turn(
    monkeypatch: pytest.MonkeyPatch, second_secs: float, budgets: list[float], found: tuple[float, float]
) -> None:
    """Three times, in orders that alternate; the least counts."""
    first, second = Path("first"), Path("second")
    asked: list[tuple[Path, float]] = []

    def measure(folder: Path, inputs: object, budget_secs: float) -> float:
        assert inputs is INPUTS
        asked.append((folder, budget_secs))
        faster = 0.1 if len(asked) in (3, 5) else 0.0  # the second one in the second round, the first one in the third
        return (1.0 if folder == first else second_secs) - faster

    monkeypatch.setattr(fresh_process, "measure", measure)
    assert fresh_process.measure_in_turn(first, second, INPUTS, 3.0) == pytest.approx(found)
    order = [first, second, second, first, first, second]
    assert asked == list(zip(order, budgets, strict=False))


@pytest.mark.parametrize("at_fault", ["owned_folder", "write", "subprocess.run"])
def test_a_machine_that_refuses_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at_fault: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"devices.networks.processes.fresh_process.{at_fault}", refuse)
    with pytest.raises(UncheckedError, match="No space left"):
        fresh_process.measure(tmp_path, INPUTS, 1.0)


def test_one_that_waits_for_a_network_says_what_is_wrong_with_it_and_leaves_nothing(tmp_path: Path) -> None:
    waiting = fresh_process.PreloadedProcess(INPUTS, 1.0)
    with pytest.raises(UncheckedError, match="OutputFolderError"):
        waiting.tried(tmp_path / "missing")
    assert not waiting._work.exists()


def test_one_that_waits_in_vain_is_ended() -> None:
    waiting = fresh_process.PreloadedProcess(INPUTS, 1.0)
    assert waiting._work.exists()
    for _ in range(2):
        waiting.close()
    assert waiting._process.returncode == -signal.SIGKILL
    assert not waiting._work.exists()


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Whose it is not: it ends at once, without having looked for the network."""
    worker = "devices.networks.processes.network_worker"
    command = [sys.executable, "-m", worker, str(tmp_path), str(tmp_path), "0", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
