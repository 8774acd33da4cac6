"""The child process of :class:`devices.server.server.DeviceServer`: accepts TVM RPC clients and forks one process for
each.

Run as ``python -m devices.server.session_server SETTINGS``. It speaks the handshake of TVM's RPC server
(:mod:`devices.rpc.handshake`) and hands the connection to TVM's own server loop, in a forked session process. TVM's
Python server does the same, but ends for good when a session process dies of a crashing kernel, and waits forever for a
client that connects and sends nothing. This server notes how the session ended and takes the next client at once. It
only waits for events. So it answers its parent, and the clients that watch it, while a session runs and while another
client is slow to send its request.

Its parent's first message is the key that clients must know, empty if there is none. On top of TVM's functions a
session has those of :mod:`devices.server.session_functions`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path

from devices.host.children.child import (
    Channel,
    die_with_parent,
    load_tvm,
    parent_channel,
    read_in_background,
)
from devices.host.children.exit_causes import oom_kill_count
from devices.host.limits.confinement import become, confine
from devices.host.limits.priority import KERNEL_PRIORITY, refusal
from devices.rpc.handshake import ClientHello, ConnectedClient, HandshakeError
from devices.rpc.keys import new_challenge
from devices.server.registration import TrackerRegistration
from devices.server.session_process import SessionProcess, end_with_client
from devices.server.session_settings import SessionServerSettings
from devices.timing.evaluator import load_decide

# Seconds between two messages to the parent, which replaces a silent process.
HEARTBEAT_SECS = 1.0
SILENCE_TIMEOUT_SECS = 30.0
# The connection of a killed session closes a moment before the kernel reports how its process ended.
_ENDING_SECS = 0.1
# The client of a session that crashed comes back at once. After this time the device is offered to other clients of the
# tracker.
_RETURN_SECS = 2.0
# Priority above that of kernels (see :mod:`devices.host.limits.priority`), which may occupy all cores for seconds. This
# process works little.
WATCHING_PRIORITY = KERNEL_PRIORITY + 1
# Largest number of connections at a time, and of clients whose last exit is remembered. Above the first limit, the
# oldest client that has not yet shown that it may be served makes room for a new one.
_MAX_CONNECTIONS = 128
_MAX_EXITS = 64


@dataclass(frozen=True, slots=True)
class _PendingClient:
    """A connection whose client has not yet shown that it may be served."""

    since: float
    """Monotonic seconds at which it connected."""
    greeting: ClientHello | None = None
    """Set for a client that has not yet said what it wants."""
    challenge: str = ""
    """Number for which a client that watches has to prove the key."""


def main() -> None:
    settings = SessionServerSettings.from_json(sys.argv[1])
    channel = parent_channel()
    secret = channel.receive_bytes() or None
    server: SessionServer | None = None

    def clean_up() -> None:
        try:
            if server is not None:
                server.end_for_good()
        finally:
            _remove(Path(settings.folder))

    read_in_background(channel, lambda _message: None, clean_up)
    load_tvm()
    server = SessionServer(settings, channel, secret)
    if settings.user is not None:
        become(settings.user, WATCHING_PRIORITY if settings.realtime else 0)
    channel.send_or_drop(json.dumps({"ready": True, "tvm_says": _what_tvm_says()}).encode())
    server.run()


def _what_tvm_says() -> str:
    """Return TVM's own warning of exposing an RPC server: the paragraph of its documentation on trust."""
    import tvm.rpc

    paragraphs = (" ".join(each.split()) for each in (tvm.rpc.__doc__ or "").split("\n\n"))
    return next((each for each in paragraphs if "trusted" in each), "an RPC server runs whatever code it is sent")


def _remove(folder: Path) -> None:
    """Remove the folder of uploads for an owner that was killed.

    A session that still runs may put a file into it while it is emptied: then it is emptied once more.
    """
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


class SessionServer:
    """Accepts clients on a listening socket and serves one session at a time, until the process is killed.

    ``secret``: key that clients must know; ``None`` to serve everybody.
    """

    def __init__(self, settings: SessionServerSettings, channel: Channel, secret: bytes | None) -> None:
        from devices.server.session_functions import SessionFunctions

        self._settings = settings
        self._folder = Path(settings.folder)
        self._channel = channel
        self._secret = secret
        for left in self._folder.glob("session-*"):  # left by an earlier process that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._functions = SessionFunctions(
            load_decide(settings.decide), settings.limits.upload_bytes, settings.realtime, Path(settings.root)
        )
        self._listening = socket.socket(fileno=settings.listening)
        self._listening.setblocking(False)
        self._pending: dict[socket.socket, _PendingClient] = {}
        self._waiting: deque[ConnectedClient] = deque()
        self._watching: set[socket.socket] = set()
        self._session: SessionProcess | None = None
        self._ending = False
        self._ends: OrderedDict[str, str] = OrderedDict()
        self._signals, wakeup = socket.socketpair()
        self._signals.setblocking(False)
        wakeup.setblocking(False)
        self._wakeup = wakeup
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        self._registration: TrackerRegistration | None = None

    def run(self) -> None:
        port = int(self._listening.getsockname()[1])
        if self._settings.tracker is not None:
            self._registration = TrackerRegistration(self._settings.tracker, port, self._log)
        refused = refusal() if self._settings.realtime else "not wanted"
        if refused and self._settings.realtime:
            self._log(f"kernels run at the usual priority: {refused}")
        if not refused:
            with contextlib.suppress(OSError):  # an emulator may know the one and not the other
                # Sessions do not inherit the priority.
                os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(WATCHING_PRIORITY))
        beat_at = 0.0
        while True:
            now = time.monotonic()
            if now >= beat_at:
                self._channel.send_or_drop(b"{}")
                beat_at = now + HEARTBEAT_SECS
            self._drop_silent_clients(now)
            if self._session is not None:
                self._session.end_if_stopped(now)
            if self._session is None and self._waiting and not self._ending:
                self._start_session(self._waiting.popleft())
            soon = HEARTBEAT_SECS / 4 if self._session and self._session.stopped_at else HEARTBEAT_SECS
            self._handle_events(min(soon, beat_at - now))

    def _handle_events(self, wait_secs: float) -> None:
        waiting = {client.connection: client for client in self._waiting}
        watched = [self._listening, self._signals, *self._pending, *waiting, *self._watching]
        readable, _, _ = select.select(watched, [], [], max(0.0, wait_secs))
        for ready in readable:
            if ready.fileno() < 0:
                continue  # closed while another one was handled
            if ready is self._listening:
                self._accept()
            elif ready is self._signals:
                self._reap()
            elif (pending := self._pending.get(ready)) is not None and pending.greeting is not None:
                self._listen_to(ready, pending.greeting)
            elif pending is not None or ready in self._watching:
                self._answer_watcher(ready)
            else:  # a client that waits sends nothing: it hung up
                self._waiting.remove(waiting[ready])
                ready.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return  # it hung up before it was accepted
        if len(self._pending) + len(self._waiting) + len(self._watching) >= _MAX_CONNECTIONS:
            if not self._pending:
                connection.close()
                return
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.close()
        self._pending[connection] = _PendingClient(time.monotonic(), ClientHello(connection))

    def _listen_to(self, connection: socket.socket, greeting: ClientHello) -> None:
        """Read the request of a new client as far as it has arrived, and handle it once it is complete."""
        try:
            client = greeting.heard()
            if client is None:
                return
            since = self._pending.pop(connection).since
            if client.watches:
                challenge = client.accept_watcher(self._settings.key, self._secret)
                if challenge:
                    self._pending[connection] = _PendingClient(since, challenge=challenge)
                else:
                    self._watching.add(connection)
            elif not (self._is_known(client) and self._is_asked_for(client.key)):
                client.refuse()
            else:
                self._reap()  # a session of this client may have ended by itself a moment ago
                session = self._session
                if session is not None and client.name and client.name == session.client.name:
                    self._waiting.appendleft(client)  # a client keeps the device that it has
                    select.select([self._signals], [], [], _ENDING_SECS)
                    self._reap()
                    if self._session is session:
                        session.end("")
                else:
                    self._waiting.append(client)
        except HandshakeError:
            self._pending.pop(connection, None)
            connection.close()

    def _is_known(self, client: ConnectedClient) -> bool:
        """Return true if the client has proven the key for the number that a watching connection was given. A number
        can be used once. After a proof the watching connection counts as a client's."""
        if self._secret is None:
            return True
        for connection, pending in self._pending.items():
            if pending.challenge and pending.challenge == client.challenge:
                known = client.knows(self._secret)
                if known:
                    del self._pending[connection]
                    self._watching.add(connection)
                else:
                    self._pending[connection] = _PendingClient(pending.since, challenge=new_challenge())
                return known
        return False

    def _is_asked_for(self, key: str) -> bool:
        """Return true if a client that names ``key`` means this server."""
        if key in ("", self._settings.key):
            return True
        return self._registration is not None and self._registration.accepts(key)

    def _answer_watcher(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(64)
            if received:
                connection.send(received)
                return
        except OSError:
            pass
        self._watching.discard(connection)
        self._pending.pop(connection, None)
        connection.close()

    def end_for_good(self) -> None:
        """End the session's process and start no other; called on any thread.

        If its files were removed first, the session would report a missing library to its client, and the candidate
        would be blamed.
        """
        self._ending = True
        if self._session is not None:
            self._session.kill_and_wait()

    def _drop_silent_clients(self, now: float) -> None:
        for connection, pending in list(self._pending.items()):
            if now - pending.since > SILENCE_TIMEOUT_SECS:
                del self._pending[connection]
                connection.close()

    def _start_session(self, client: ConnectedClient) -> None:
        """Fork the session's process."""
        try:
            client.accept(self._settings.key)
        except HandshakeError:
            client.connection.close()
            return
        if self._registration is not None:
            self._registration.taken()
        try:
            folder = Path(tempfile.mkdtemp(prefix="session-", dir=self._folder))
        except OSError as error:
            if not self._ending:  # else all folders are being removed
                self._refuse(client, error)
            client.connection.close()
            return
        own_pid = os.getpid()
        oom_kills = oom_kill_count()
        try:
            pid = os.fork()
        except OSError as error:
            self._refuse(client, error)
            client.connection.close()
            shutil.rmtree(folder, ignore_errors=True)
            return
        if pid == 0:
            try:
                die_with_parent(own_pid)
                self._serve(client, folder)
            except BaseException as error:
                print(f"session: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        client.connection.close()
        self._session = SessionProcess(pid, client, folder, oom_kills)
        if self._ending:  # the other thread may have found no session a moment ago
            self.end_for_good()

    def _serve(self, client: ConnectedClient, folder: Path) -> None:
        """Run TVM's server loop over the connection in the forked process, until the client closes it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        others = [each.connection for each in self._waiting]
        for other in (self._listening, self._signals, self._wakeup, *self._pending, *self._watching, *others):
            other.close()
        self._channel.close()
        if self._registration is not None:
            self._registration.close_inherited()
        os.chdir(folder)
        confine(self._settings.limits)
        end_with_client(client)
        self._functions.serve(client.connection, folder / "files", self._ends.get(client.name, self._settings.before))

    def _reap(self) -> None:
        """Note how the session ended, or that it was stopped."""
        try:
            while self._signals.recv(256):
                pass
        except BlockingIOError:
            pass
        session = self._session
        end = None if session is None else session.reap(self._settings.limits.memory_bytes)
        if session is None or end is None:
            return
        self._ends[session.client.name] = end
        self._ends.move_to_end(session.client.name)
        while len(self._ends) > _MAX_EXITS:
            self._ends.popitem(last=False)
        self._session = None
        if self._registration is not None:
            self._registration.free(_RETURN_SECS if end else 0.0)

    def _refuse(self, client: ConnectedClient, error: OSError) -> None:
        if self._registration is not None:
            self._registration.free()
        self._log(f"no session can be started for {client.name or 'a client'}: {error.strerror}")

    def _log(self, line: str) -> None:
        self._channel.send_or_drop(json.dumps({"log": line}).encode())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
