"""Long-lived child processes: their start, their channel to the parent, their end.

A child is a fresh interpreter (never a fork of a process that has TVM loaded) that runs one module of this package.
Parent and child share a socket pair; messages are msgpack maps with their length in front, or plain bytes where the
child runs on a board without msgpack. The socket is the child's lifeline too: when the parent dies, however it dies,
the kernel closes its end, and the child sees that and exits.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devices.host.children.exit_causes import describe_exit
from devices.host.children.parent import end_with_parent
from devices.host.garbage_collection import garbage_collection_paused

_LENGTH = struct.Struct("<Q")
# Shortest wait between two looks at a clock that may stand still.
_LOOK_AGAIN_SECS = 0.02
_ROOT = Path(__file__).resolve().parents[3]


class Channel:
    """Messages over a connected stream socket. Either end may be used by one thread at a time for each direction."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises OSError when the other end is gone."""
        import msgpack  # type: ignore[import-untyped]

        body = msgpack.packb(message, use_bin_type=True)
        self._socket.settimeout(None)
        self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, timeout_secs: float | None = None, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
        """Return the next message.

        ``clock``: counts the seconds of the timeout; it may stand still at times. Raises EOFError when the other end is
        gone, TimeoutError past the deadline.
        """
        body = self.receive_bytes(timeout_secs, clock)
        import msgpack

        message: dict[str, Any] = msgpack.unpackb(body, raw=False)
        return message

    def send_or_drop(self, body: bytes) -> None:
        """Send a short message of bytes, or drop it if the other end is stopped or gone."""
        with contextlib.suppress(OSError):
            self._socket.send(_LENGTH.pack(len(body)) + body, socket.MSG_DONTWAIT)

    def receive_bytes(self, timeout_secs: float | None = None, clock: Callable[[], float] = time.monotonic) -> bytes:
        """Return the bytes of the next message; see :meth:`receive`."""
        deadline = None if timeout_secs is None else clock() + timeout_secs
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline, clock))
        return self._read(length, deadline, clock)

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int, deadline: float | None, clock: Callable[[], float]) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            if deadline is None:
                self._socket.settimeout(None)
            else:
                remaining = deadline - clock()
                if remaining <= 0:
                    raise TimeoutError("no message within the deadline")
                self._socket.settimeout(max(remaining, _LOOK_AGAIN_SECS))
            try:
                chunk = self._socket.recv(min(size - len(chunks), 1 << 20))
            except TimeoutError:
                continue  # the clock may have stood still: check the deadline again
            except ConnectionError as error:
                raise EOFError("the other process is gone") from error
            if not chunk:
                raise EOFError("the other process is gone")
            chunks += chunk
        return bytes(chunks)


class ChildProcess:
    """A running child process, seen from its parent.

    Args:
        module: dotted name of the module to run; it gets its end of the channel from :func:`parent_channel`.
        args: its command line.
        env: variables on top of this process' own.
        pass_fds: descriptors that it inherits.
    """

    def __init__(
        self, module: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
    ) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._group_ended = False
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, **(env or {}), _CHANNEL_VARIABLE: str(theirs.fileno())},
                pass_fds=[theirs.fileno(), *pass_fds],
                # A process group of its own: Ctrl-C in a terminal is for the parent, which ends its children in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        """Return true if the child still runs. A child whose first thread has ended cannot be reaped before its other
        threads have ended, but does not answer any more."""
        if self._process.poll() is not None:
            return False
        try:
            return "\nState:\tZ" not in Path(f"/proc/{self._process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
            return False

    def wait(self) -> None:
        """Wait until the child has ended."""
        self._process.wait()

    def abort(self) -> None:
        """End the child and all processes of its group, from any thread; :meth:`kill` is still to be called."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
        # The child's own children may outlive it. The kernel does not reuse its process id while its group exists, but
        # may later.
        elif not self._group_ended and not Path(f"/proc/{self._process.pid}").exists():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._group_ended = True

    def kill(self) -> None:
        """End the child and all processes of its group, and reap it. May be called twice."""
        self.abort()
        self._process.wait()
        self.channel.close()
        self._errors.close()

    def obituary(self, wait_secs: float = 5.0) -> str:
        """Return how a child ended and its last words, in one line. Not after :meth:`kill`, which discards the
        words."""
        try:
            code = self._process.wait(wait_secs)
        except subprocess.TimeoutExpired:
            return "still running, with its channel closed"
        return "; ".join(filter(None, [describe_exit(code), self.last_words()]))

    def last_words(self) -> str:
        """Return the last line of the child's output; empty after :meth:`kill`, which another thread may call
        meanwhile."""
        lines: list[str] = []
        with contextlib.suppress(ValueError):  # the file is closed
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - 4096))
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:500] if lines else ""


def parent_channel() -> Channel:
    """Return the child's end of the channel. To be called in the child."""
    return Channel(socket.socket(fileno=int(os.environ.pop(_CHANNEL_VARIABLE))))


def read_in_background(
    channel: Channel, handle: Callable[[dict[str, Any]], None], clean_up: Callable[[], None] | None = None
) -> None:
    """Hand each message to ``handle`` on a thread of the child, and exit at once when the parent is gone.

    ``clean_up``: runs before that exit, to remove what the parent would have removed.
    """

    def run() -> None:
        while True:
            try:
                message = channel.receive()
            except (EOFError, OSError):
                try:
                    if clean_up is not None:
                        clean_up()
                finally:
                    os._exit(0)
            handle(message)

    threading.Thread(target=run, name="parent", daemon=True).start()


def without_torch() -> None:
    """Make ``import torch`` fail in the child. To be called before TVM is imported.

    tvm_ffi imports torch if it can, which takes a second and 200 MB, and TVM's code generation needs none of it.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]


def load_tvm() -> None:
    """Import TVM without torch in the child. The garbage collector, which would find nothing, is paused: that saves
    about a sixth of the time."""
    without_torch()
    with garbage_collection_paused():
        importlib.import_module("tvm")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill a forked child of ``parent_pid`` when its parent's forking thread ends."""
    end_with_parent()
    if os.getppid() != parent_pid:
        os._exit(0)


_CHANNEL_VARIABLE = "FLEET_TUNE_CHANNEL"
