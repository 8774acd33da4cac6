"""The emulated board, made and started once for all tests of this folder."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.client.session import RpcSession
from tests.arm64.board import BOARD_START_SECS, KEY, PREPARE_SECS, ROOT, TRACKER_START_SECS, Board, Process


@pytest.fixture(scope="session")
def tracker() -> Iterator[int]:
    """A real TVM RPC tracker; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    process = Process([sys.executable, "-m", "tvm.exec.rpc_tracker", *options])
    try:
        deadline = time.monotonic() + TRACKER_START_SECS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.running.poll() is None, process.lines
            assert time.monotonic() < deadline, process.lines
            threading.Event().wait(0.1)
        yield port
    finally:
        process.end()


@pytest.fixture(scope="session")
def board(tracker: int) -> Iterator[Board]:
    """``fleet-tune device serve`` on the board, with its own Python and wheels, registered at the tracker."""
    made = subprocess.run(
        ["tests/arm64/board.sh", "prepare"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PREPARE_SECS,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert made.returncode == 0, made.stderr
    python = str(Path(made.stdout.strip().splitlines()[-1]) / "bin" / "python3")
    serve = ["-m", "fleet_tune", "device", "serve", "--no-key", "--port", "0", "--threads", "2"]
    registered = ["--tracker", f"127.0.0.1:{tracker}", "--key", KEY]
    process = Process([python, *serve, *registered], {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})
    try:
        ready = process.line_with("ready on", BOARD_START_SECS)
        port = int(ready.partition("127.0.0.1:")[2].split()[0])
        yield Board(python, port, tracker)
    finally:
        process.end()


@pytest.fixture
def session(board: Board) -> Iterator[RpcSession]:
    opened = RpcSession("127.0.0.1", board.port, timeout_secs=60)
    try:
        yield opened
    finally:
        opened.close()
