"""TVM's tracker in a process of its own, which can be killed and started again."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

from bench.processes import ROOT
from bench.result import BenchError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def tracker(port: int) -> Iterator[Callable[[], None]]:
    """Run TVM's tracker on ``port`` and yield a function that kills it and starts it again.

    Raises :class:`BenchError` if the tracker does not start.
    """

    def start() -> subprocess.Popen[str]:
        # The tracker ends when its standard input does. It cannot be tied to the thread that starts it, because that
        # thread may end before this process does.
        code = (
            "import os, sys\n"
            "from tvm.rpc.tracker import PopenTrackerServerState\n"
            f"print(PopenTrackerServerState('127.0.0.1', {port}, {port + 1}, silent=True).port, flush=True)\n"
            "sys.stdin.read()\n"
            "os._exit(0)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        if process.stdout.readline().strip() != str(port):
            raise BenchError("TVM's tracker did not start")
        return process

    running = [start()]

    def restart() -> None:
        running[0].kill()
        running[0].wait()
        running[0] = start()

    try:
        yield restart
    finally:
        running[0].kill()
        running[0].wait()
