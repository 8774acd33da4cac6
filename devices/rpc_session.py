"""An open TVM RPC session in which every wait has a deadline.

TVM's RPC client blocks in native code for as long as the server takes, and offers no way out. Here a watchdog shuts the
connection down at the deadline, so that the blocked call fails at once. (Its socket is found among this process'
descriptors when it is connected; a duplicate is kept, which stays valid whatever TVM does with its own.)
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import rpc

from devices.failures import last_line


class SessionLostError(Exception):
    """The session is gone: the other side closed or crashed, or could not be reached."""


class SessionTimeoutError(SessionLostError):
    """The other side did not answer within the deadline, and the session was given up."""


class RpcSession:
    """One session with a TVM RPC server, ours or a plain one.

    ``timeout_secs``: deadline for connecting; a server that is busy with another client is waited for as long.
    ``lifetime_secs``: what a plain server is asked to end the session after, whatever it does then.

    Raises SessionLostError if nobody listens, SessionTimeoutError past the deadline.
    """

    def __init__(
        self, host: str, port: int, key: str = "", timeout_secs: float = 10.0, lifetime_secs: float | None = None
    ) -> None:
        self._deadline = time.monotonic() + timeout_secs
        self._socket: socket.socket | None = None
        try:
            with socket.create_connection((host, port), timeout=timeout_secs) as probe:
                peer = probe.getpeername()
        except TimeoutError as error:
            raise SessionTimeoutError(f"no connection to {host}:{port} within {timeout_secs:g} s") from error
        except OSError as error:
            raise SessionLostError(f"no connection to {host}:{port}: {error.strerror or error}") from error
        with _connecting:
            self._others = _sockets_to(peer)
            self._peer = peer
            with self.deadline(timeout_secs):
                self._session = rpc.connect(peer[0], port, key, session_timeout=lifetime_secs or 0)
            self._socket = self._find_socket()
        self._started = time.monotonic()
        try:
            self.ours = self._has("fleet_tune.evaluate")
        except BaseException:
            self.close()
            raise

    @property
    def age_secs(self) -> float:
        return time.monotonic() - self._started

    def function(self, name: str) -> Any:
        """A packed function of the other side."""
        return self._session.get_function(name)

    def device(self, kind: str) -> Any:
        """The other side's first device of a kind (``"cpu"``, ``"cuda"``)."""
        return self._session.device(kind, 0)

    def load(self, library: bytes, name: str) -> Any:
        """Upload a shared object under ``name``, which must be new (overwriting a loaded one crashes the session),
        load it, and remove the file again."""
        self._session.upload(bytearray(library), name)
        try:
            return self._session.load_module(name)
        finally:
            with contextlib.suppress(Exception):  # the session may be the reason that loading failed
                self._session.remove(name)

    def download(self, path: str) -> bytes:
        """A file of the other side. TVM's own servers take absolute paths too."""
        return bytes(self._session.download(path))

    @contextmanager
    def deadline(self, timeout_secs: float) -> Iterator[None]:
        """Run calls on the session; cut it if they take longer.

        Raises SessionTimeoutError past the deadline, SessionLostError if the session is found dead after an error; any
        other exception of the calls passes through, and the session is still good.
        """
        late = threading.Event()

        def cut() -> None:
            late.set()
            self.cut()

        watchdog = threading.Timer(timeout_secs, cut)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        except SessionLostError:
            raise
        except Exception as error:
            watchdog.cancel()
            if late.is_set():
                raise SessionTimeoutError(f"no answer within {timeout_secs:g} s") from error
            if not self.alive():
                raise SessionLostError(last_line(error)) from error
            raise
        finally:
            watchdog.cancel()

    def alive(self) -> bool:
        """Whether the session still answers (False while connecting)."""
        if self._socket is None:
            return False
        watchdog = threading.Timer(5.0, self.cut)
        watchdog.daemon = True
        watchdog.start()
        try:
            self._session.get_function("tvm.rpc.server.upload")
        except Exception:
            return False
        finally:
            watchdog.cancel()
        return True

    def cut(self) -> None:
        """Shut the connection down; calls in flight fail. The session is lost."""
        found = [self._socket] if self._socket else [socket.socket(fileno=os.dup(fd)) for fd in self._new_sockets()]
        for connection in found:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if connection is not self._socket:
                connection.close()

    def close(self) -> None:
        """End the session in order, as far as the other side plays along."""
        self.cut()
        if self._socket is not None:
            self._socket.close()

    def _has(self, name: str) -> bool:
        with self.deadline(max(0.1, self._deadline - time.monotonic())):
            try:
                self._session.get_function(name)
            except (AttributeError, ValueError, RuntimeError):
                if not self.alive():
                    raise
                return False
            return True

    def _find_socket(self) -> socket.socket:
        found = self._new_sockets()
        if not found:
            raise SessionLostError("the connection is gone as soon as it was made")
        return socket.socket(fileno=os.dup(max(found)))

    def _new_sockets(self) -> set[int]:
        return _sockets_to(self._peer) - self._others


# Sockets to one address are told apart by when they appear: one connection is made at a time.
_connecting = threading.Lock()


def _sockets_to(peer: Any) -> set[int]:
    """Descriptors of this process that are sockets connected to ``peer``."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # the descriptor of the listing itself, or closed meanwhile
        with duplicate, contextlib.suppress(OSError):
            if duplicate.getpeername()[:2] == peer[:2]:
                found.add(int(name))
    return found
