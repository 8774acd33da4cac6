"""The emulated board of ``make test-arm64``, and processes that end with a test."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from devices.host.children.parent import end_with_parent

ROOT = Path(__file__).parents[2]
KEY = "board"
ORIN = {"kind": "llvm", "mcpu": "cortex-a78ae", "mtriple": "aarch64-linux-gnu"}
AARCH64 = 183  # e_machine of an ELF file
# How long each step may take at most. ``make test-arm64`` has prepared the board before: there that is a look.
PREPARE_SECS = 500.0
TRACKER_START_SECS = 60.0
BOARD_START_SECS = 180.0
CALL_SECS = 120.0
# The first test of the session prepares and starts everything.
START_SECS = PREPARE_SECS + TRACKER_START_SECS + BOARD_START_SECS


class Process:
    """A process of the test's own whose lines of output are waited for; ended with the test, however that ends."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self._news: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.running = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=end_with_parent,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self.lines.append(line.rstrip())
            self._news.put(line)
        self._news.put(None)

    def line_with(self, text: str, deadline_secs: float) -> str:
        deadline = time.monotonic() + deadline_secs
        while (remaining := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._news.get(timeout=remaining)
                if line is None:
                    break
                if text in line:
                    return line
        raise AssertionError(f"no line with {text!r}: {self.lines[-20:]}")

    def end(self) -> None:
        self.running.terminate()
        try:
            self.running.wait(20)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait(20)


@dataclass(frozen=True)
class Board:
    """The emulated board: ``python`` runs its Python, ``port`` is its device server's, ``tracker`` the tracker's."""

    python: str
    port: int
    tracker: int
