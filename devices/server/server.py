"""The device server: run by ``fleet-tune device serve``, and by a device actor for its own machine.

It holds the listening socket, and keeps a child process on it that serves TVM RPC sessions
(:mod:`devices.server.session_server`). A kernel that crashes ends only the process of its session. If the child itself
dies or falls silent, a new one takes over the same socket, and clients that connect in between wait in its queue.

This module needs only Python, numpy and TVM.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from devices.host.children.child import ChildProcess
from devices.host.children.exit_causes import ended_from_outside
from devices.host.limits.confinement import PrivateFolder, SessionLimits, check_account, default_limits
from devices.rpc.keys import read_or_make_key
from devices.server.registration import TrackerAddress
from devices.server.session_settings import SessionServerSettings
from devices.timing.evaluator import load_decide
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import FleetTuneError, UserError

DEFAULT_KEY = ""
_START_TIMEOUT_SECS = 60.0
# A child that dies sooner than this after its start counts as a quick death; so many in a row end the server.
_QUICK_DEATH_SECS = 5.0
_MAX_QUICK_DEATHS = 5
# A child that was silent for so long is stopped or stuck, and is replaced; it sends a message every second.
_SILENCE_SECS = 5.0
_WAKE_SECS = 0.5

_log = logging.getLogger(__name__)


class ServerStartError(FleetTuneError):
    """The server's child process could not be started: a fault of the installation."""


class ServerAddressError(UserError):
    """The address cannot be listened on: choose another one."""


class DeviceServer:
    """A supervised TVM RPC server for one device. It ends with the process that started it, also when that is killed.

    Anybody who reaches the port, and knows ``secret``, can run code as this user. The traffic is plain text. So the
    default address is loopback. Raises AccountError if ``user`` is an account that this process cannot switch to.

    Args:
        host: address to listen on.
        port: port to listen on; 0 takes a free one (see :attr:`port`).
        threads: threads that kernels run on (TVM's own default is half of the logical CPUs); None for all CPUs that
            this process may use.
        decide: ``"module:function"`` of the rule that stops a measurement; ``None`` to stop at the rule's maximum only.
        key: TVM's routing key, which is no secret. Clients are served if they give this key or none.
        secret: key that clients must know (:mod:`devices.rpc.keys`); ``None`` to serve everybody.
        tracker: tracker to register with; its key is used instead of ``key``.
        limits: limits of a session; ``None`` for the defaults.
        user: account of the processes that serve clients; ``None`` for the user of this process.
        realtime: time kernels at real-time priority where that is allowed (:mod:`devices.host.limits.priority`).
        root: folder with the system's files that describe the machine; tests pass another one.
        log: called with each line that an operator should know.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        threads: int | None = None,
        decide: str | None = None,
        key: str = DEFAULT_KEY,
        secret: bytes | None = None,
        tracker: TrackerAddress | None = None,
        limits: SessionLimits | None = None,
        user: str | None = None,
        realtime: bool = True,
        root: Path = Path("/"),
        log: Callable[[str], None] = _log.info,
    ) -> None:
        load_decide(decide)  # report a wrong name to the caller at once
        if user is not None:
            check_account(user)
        self.host = host
        self.threads = threads or usable_cpus()
        self.tvm_says = ""
        self._requested_port = port
        self._decide = decide
        self._secret = secret
        self._key = tracker.key if tracker is not None else key
        self._tracker = tracker
        self._limits = limits or default_limits()
        self._user = user
        self._realtime = realtime
        self._root = root
        self._log = log
        self._socket: socket.socket | None = None
        self._private: PrivateFolder | None = None
        self._child: ChildProcess | None = None
        self._supervisor: threading.Thread | None = None
        self._stopping = threading.Event()
        self.failure: ServerStartError | None = None

    def __enter__(self) -> DeviceServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """Port in use. RuntimeError before :meth:`start`."""
        if self._socket is None:
            raise RuntimeError("the device server is not started")
        return int(self._socket.getsockname()[1])

    @property
    def child_pid(self) -> int:
        """Process id of the child that serves at the moment. RuntimeError before :meth:`start`."""
        if self._child is None:
            raise RuntimeError("the device server is not started")
        return self._child.pid

    @property
    def folder(self) -> Path:
        """Private folder for uploads. RuntimeError before :meth:`start`."""
        if self._private is None:
            raise RuntimeError("the device server is not started")
        return self._private.path

    @property
    def exposed(self) -> bool:
        """True if the port can be reached from other machines."""
        return not is_loopback(self.host)

    def start(self) -> None:
        """Listen, start the child and return when it serves.

        Raises ServerAddressError if the address is taken or not ours, ServerStartError if the child does not start.
        """
        self._socket = self._listen()
        self._private = PrivateFolder(self._user)
        try:
            self._child = self._start_child()
        except ServerStartError:
            self.stop()
            raise
        self._supervisor = threading.Thread(target=self._supervise, name="device-server", daemon=True)
        self._supervisor.start()

    def stop(self) -> None:
        """End the child and its session, close the socket, remove the temporary files. May be called twice."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()
        if self._supervisor is not None:
            self._supervisor.join(10.0)
        if self._socket is not None:
            self._socket.close()
        if self._private is not None:
            self._private.remove()

    def serve_forever(self, ready: Callable[[DeviceServer], None] | None = None) -> None:
        """Start, call ``ready``, and serve until SIGTERM or SIGINT (main thread only).

        Raises what :meth:`start` raises, and ServerStartError if the child can not be kept alive.
        """

        def finish(_number: int, _frame: FrameType | None) -> None:
            self._stopping.set()

        before = {number: signal.signal(number, finish) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with self:
                if ready is not None:
                    ready(self)
                # The signal may have reached another thread: this one sees it only when it wakes.
                while not self._stopping.wait(_WAKE_SECS):
                    pass
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.failure is not None:
            raise self.failure

    def _listen(self) -> socket.socket:
        listening = None
        try:
            family = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)[0][0]
            listening = socket.socket(family, socket.SOCK_STREAM)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self._requested_port))
            listening.listen(16)
        except OSError as error:
            if listening is not None:
                listening.close()
            raise ServerAddressError(
                f"cannot listen on {self.host}:{self._requested_port} ({error.strerror or error})",
                "choose another host or port, or port 0 for a free one",
            ) from error
        return listening

    def _start_child(self, before: str = "") -> ChildProcess:
        """Start the child. ``before``: see :class:`devices.server.session_settings.SessionServerSettings`."""
        assert self._socket is not None
        assert self._private is not None
        settings = SessionServerSettings(
            listening=self._socket.fileno(),
            lock=self._private.lock,
            folder=str(self._private.path),
            key=self._key,
            decide=self._decide,
            limits=self._limits,
            tracker=self._tracker,
            user=self._user,
            realtime=self._realtime,
            before=before,
            root=str(self._root),
        )
        environment = {
            "TVM_NUM_THREADS": str(self.threads),
            "OMP_NUM_THREADS": str(self.threads),
            # TVM's default, whatever this process' environment says. More threads than CPUs cannot be bound.
            "TVM_BIND_THREADS": "1" if self.threads <= len(os.sched_getaffinity(0)) else "0",
            # Starts in half the time and half the memory; a device runs kernels and compiles none.
            "TVM_USE_RUNTIME_LIB": "1",
        }
        try:
            child = ChildProcess(
                "devices.server.session_server",
                [settings.to_json()],
                environment,
                pass_fds=[settings.listening, settings.lock],
            )
        except OSError as error:  # no process, no memory, no space
            raise ServerStartError(f"the device server's process cannot be started: {error.strerror}") from error
        # The secret is not on its command line, which everybody can read.
        child.channel.send_or_drop(self._secret or b"")
        try:
            self.tvm_says = str(_message(child, _START_TIMEOUT_SECS)["tvm_says"])
        except (EOFError, OSError) as error:
            reason = child.obituary(0.0 if isinstance(error, TimeoutError) else 5.0)
            child.kill()
            raise ServerStartError(f"the device server's process did not start: {reason}") from error
        return child

    def _supervise(self) -> None:
        """Replace the child whenever it dies; give up if it keeps dying right after its start."""
        quick_deaths = 0
        while True:
            assert self._child is not None
            started = time.monotonic()
            reason = self._listen_to(self._child)
            if self._stopping.is_set():
                return
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _QUICK_DEATH_SECS else 0
            self._child.kill()
            self._log(f"the process that serves clients is replaced: {reason}")
            try:
                if quick_deaths >= _MAX_QUICK_DEATHS:
                    raise ServerStartError(f"the device server's process keeps dying: {reason}")
                # The child itself runs no kernel. If it was ended from outside, its session is not to blame either.
                before = f"the process that serves clients was {reason}" if ended_from_outside(reason) else ""
                child = self._start_child(before)
            except ServerStartError as error:
                self.failure = error
                self._stopping.set()
                return
            self._child = child
            if self._stopping.is_set():
                child.kill()
                return

    def _listen_to(self, child: ChildProcess) -> str:
        """Handle the child's messages until it ends or falls silent; returns the reason."""
        while True:
            try:
                message = _message(child, _SILENCE_SECS)
            except TimeoutError:
                return f"it sent nothing for {_SILENCE_SECS:g} s"
            except (EOFError, OSError, ValueError):
                return child.obituary() if not self._stopping.is_set() else ""
            if "log" in message:
                self._log(str(message["log"]))


def _message(child: ChildProcess, timeout_secs: float) -> dict[str, Any]:
    """Return the child's next message. Raises EOFError, OSError, ValueError, TimeoutError."""
    message = json.loads(child.channel.receive_bytes(timeout_secs))
    return message if isinstance(message, dict) else {}


def is_loopback(host: str) -> bool:
    """Return true if a listening address can be reached from this machine alone. A host name counts as its address."""
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        return ipaddress.ip_address(str(address).partition("%")[0]).is_loopback
    except (OSError, ValueError, IndexError):
        return False


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    threads: int | None = None,
    decide: str | None = None,
    key: str = DEFAULT_KEY,
    announce: Callable[[str], None] = print,
    key_file: Path | None = None,
    tracker: TrackerAddress | None = None,
    limits: SessionLimits | None = None,
    user: str | None = None,
    realtime: bool = True,
    log: Callable[[str], None] = _log.info,
) -> None:
    """Serve this machine as a device until SIGTERM or SIGINT; see :class:`DeviceServer` for the other arguments.

    Args:
        announce: called with one line when the server is ready.
        key_file: file of the key that clients must have, made if it does not exist; ``None`` to serve everybody.
        log: called with later events, and first with TVM's warning if the address can be reached from other machines.

    Raises ServerAddressError, ServerStartError, AccountError, DeviceKeyError.
    """
    server = DeviceServer(
        host,
        port,
        threads=threads,
        decide=decide,
        key=key,
        secret=None if key_file is None else read_or_make_key(key_file),
        tracker=tracker,
        limits=limits,
        user=user,
        realtime=realtime,
        log=log,
    )

    def ready(running: DeviceServer) -> None:
        if running.exposed:
            log(f"{running.host} can be reached from other machines. {running.tvm_says}")
        asked = "" if key_file is None else f"; clients need the key in {key_file}"
        announce(f"device server ready on {running.host}:{running.port} ({running.threads} threads){asked}")

    server.serve_forever(ready)
