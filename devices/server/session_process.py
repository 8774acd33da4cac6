"""A forked process that serves one session: how it is watched, ended and reaped, seen from the process that forked
it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from devices.host.children.exit_causes import describe_exit, oom_kill_count, with_memory_reason
from devices.rpc.handshake import ConnectedClient

# A session that somebody stopped (SIGSTOP) would hold the device for ever; a debugger's short halt is allowed.
_STOPPED_SECS = 1.0
# A killed session that waits for a disk ends only after that. Its files are removed after this time in any case.
_KILLED_SECS = 2.0


@dataclass
class SessionProcess:
    """A forked process that serves a client."""

    pid: int
    client: ConnectedClient
    folder: Path
    oom_kills: int
    """Number of processes that the kernel had killed for lack of memory when this one began."""
    stopped_at: float | None = None
    ended_for: str | None = None
    """Reason why we ended it, for its client; ``None`` if we did not."""

    def end(self, reason: str) -> None:
        """Kill the process. Its client is told ``reason``."""
        if self.ended_for is None:
            self.ended_for = reason
            os.kill(self.pid, signal.SIGKILL)

    def end_if_stopped(self, now: float) -> None:
        """Kill the process if it has been stopped for too long."""
        if self.stopped_at is not None and now - self.stopped_at > _STOPPED_SECS:
            self.end("it was stopped (SIGSTOP) and did not go on")

    def kill_and_wait(self) -> None:
        """Kill the process and wait until it has ended, without reaping it; from any thread."""
        deadline = time.monotonic() + _KILLED_SECS
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it was reaped: its id may be reused
            while not self._has_ended() and time.monotonic() < deadline:
                os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.001)

    def reap(self, memory_bytes: int) -> str | None:
        """If the process has ended, remove its folder and return how it ended; empty if it ended in order. While it
        runs, note whether it was stopped or continued, and return ``None``.

        ``memory_bytes``: its memory limit.
        """
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return None
            if os.WIFSTOPPED(status):
                self.stopped_at = time.monotonic()
            elif os.WIFCONTINUED(status):
                self.stopped_at = None
            else:
                break
        code = os.waitstatus_to_exitcode(status)
        if self.ended_for is not None and code == -signal.SIGKILL:
            end = self.ended_for
        else:  # it ended by itself, perhaps a moment before we would have ended it
            oom_kills = oom_kill_count() - self.oom_kills
            end = with_memory_reason(
                describe_exit(code) if code else "", usage.ru_maxrss << 10, memory_bytes, oom_kills
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        return end

    def _has_ended(self) -> bool:
        """Return true if the process has ended and waits to be reaped. Raises ChildProcessError if it was reaped."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_with_client(client: ConnectedClient) -> None:
    """End this process once the client is gone or its session has expired, even while a kernel hangs."""

    def watch() -> None:
        poller = select.poll()
        poller.register(client.connection.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        wait_secs = math.inf if client.timeout_secs is None else client.timeout_secs
        poller.poll(None if math.isinf(wait_secs) else wait_secs * 1000)
        # The server loop also sees an orderly end, and cleans up: give it a moment.
        threading.Event().wait(1.0)
        os._exit(0)

    threading.Thread(target=watch, name="client", daemon=True).start()
