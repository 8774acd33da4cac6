"""An open TVM RPC session in which every wait has a deadline.

TVM's RPC client blocks in native code for as long as the server takes, and offers no way out. Here a watchdog
(:mod:`devices.client.watchdog`) shuts the connection down at the deadline, so that the blocked call fails at once. (The
connection's socket is found among this process' descriptors when TVM connects. A duplicate is kept, which stays valid
whatever TVM does with its own descriptor.)

A server of ours is also watched on a second connection while a call takes long: a server that is stopped, or behind a
network that drops everything, is noticed in seconds and not at the deadline of the call.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tvm import rpc

from devices.builds.linking import LinkerError
from devices.client.watchdog import Watchdog
from devices.cuda.errors import LostBy, context_lost_by, said
from devices.error_text import last_line
from devices.rpc import handshake
from devices.rpc.handshake import HandshakeError, KeyRefusedError
from devices.rpc.remote_linking import NO_LINKER
from fleet_tune.base.timeouts import DeviceTimeouts

_ALIVE_SECS = 5.0


def _no_linker(detail: str) -> LinkerError:
    return LinkerError(
        f"neither the build host nor the device can link for it ({detail})",
        "install a linker on the build host (binutils-aarch64-linux-gnu for 64-bit ARM, lld, or the Python package "
        "ziglang), or binutils on the device",
    )


class SessionLostError(Exception):
    """The session is gone: the other side closed or crashed, or could not be reached."""


class SessionTimeoutError(SessionLostError):
    """The other side did not answer within the deadline, and the session was given up."""


class ContextLostError(SessionLostError):
    """The session's process cannot use its GPU any more, by the fault of a kernel (:mod:`devices.cuda.errors`)."""


class SessionUnreachedError(SessionLostError):
    """No session could be opened within the time limit."""


class GpuUnusableError(SessionLostError):
    """The other side is a server that can use no GPU, at least not now."""


class SessionRefusedError(SessionLostError):
    """The other side is a server whose key we do not have."""


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The key that a server is expected to have."""

    secret: bytes | None = field(default=None, repr=False)
    """None for no key."""
    demanded: bool = False
    """True to refuse a server that has no key, even a plain one."""


NO_KEY = ServerKey()


class RpcSession:
    """One session with a TVM RPC server, ours or a plain one.

    Raises SessionLostError if nobody listens, SessionTimeoutError past the deadline, SessionRefusedError if the server
    has another key.

    Args:
        host: address of the server.
        port: its port.
        key: TVM's routing key.
        timeout_secs: time limit for connecting, also to a server that is busy with another client.
        plain_secs: time after which a plain server is asked to end the session, whatever runs then; ``None`` for no
            limit.
        name: name by which our own server knows this client (see :mod:`devices.rpc.handshake`).
        server_key: the key that the server is expected to have.
        silence_secs: seconds that the server has to give a sign of life.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        key: str = "",
        timeout_secs: float = 10.0,
        plain_secs: float | None = None,
        name: str = "",
        server_key: ServerKey = NO_KEY,
        silence_secs: float = DeviceTimeouts().silence_secs,
    ) -> None:
        self._silence_secs = silence_secs
        self._socket: socket.socket | None = None
        self._watched: socket.socket | None = None
        self._others: set[int] | None = None  # sockets to the same server that existed before
        self._dog = Watchdog(self.gives_sign_of_life, self.cut, silence_secs)
        deadline = time.monotonic() + timeout_secs
        try:
            shown = self._watch(host, port, timeout_secs, server_key)
            self.ours = shown is not None
            options = f"{key} -name={name}" if name and self.ours else key
            options += shown or ""
            with _connecting_alone(deadline):
                self._others = _sockets_to(self._peer)
                try:
                    with self.deadline(max(0.1, deadline - time.monotonic())):
                        lifetime_secs = 0 if self.ours or plain_secs is None else plain_secs
                        self._session = rpc.connect(self._peer[0], port, options, session_timeout=lifetime_secs)
                    self._socket = self._find_socket()
                except SessionTimeoutError as error:
                    if not self.ours:
                        raise
                    # The server has answered, and takes one client at a time.
                    busy = f"the device server at {host}:{port} is busy with another client since {timeout_secs:.1f} s"
                    raise SessionTimeoutError(f"{busy} (a process that is stopped keeps it too)") from error
                finally:
                    if self._socket is None:
                        self.cut()
                    self._others = None  # later sockets may be another thread's
            handshake.detect_cut(self._socket)
        except BaseException:
            self.close()
            raise
        self._started = time.monotonic()

    @property
    def age_secs(self) -> float:
        return time.monotonic() - self._started

    def function(self, name: str) -> Any:
        """Return a packed function of the server."""
        return self._session.get_function(name)

    def device(self, kind: str) -> Any:
        """Return the server's first device of a kind (``"cpu"``, ``"cuda"``)."""
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

    def load_objects(self, archive: bytes, name: str) -> Any:
        """Upload an archive of object files under ``name``, which must be new. Have the server link and load it.

        Raises LinkerError if our own server has no linker, or if a plain server fails; RuntimeError if linking or
        loading fails on our own server.
        """
        if not self.ours:
            try:
                return self.load(archive, f"{name}.tar")  # TVM's own server links with its host's C++ compiler
            except RuntimeError as error:
                raise _no_linker(last_line(error)) from error
        self._session.upload(bytearray(archive), f"{name}.tar")
        try:
            problem = str(self.function("fleet_tune.link")(f"{name}.tar", f"{name}.so"))
            if problem:
                raise _no_linker(problem) if problem == NO_LINKER else RuntimeError(problem)
            return self._session.load_module(f"{name}.so")
        finally:
            for suffix in (".tar", ".so"):
                with contextlib.suppress(Exception):
                    self._session.remove(f"{name}{suffix}")

    def download(self, path: str) -> bytes:
        """Return a file of the server. TVM's own servers take absolute paths too."""
        return bytes(self._session.download(path))

    @contextmanager
    def deadline(self, timeout_secs: float) -> Iterator[None]:
        """Run calls on the session; cut it if they take longer, or if the server shows no sign of life meanwhile.

        Raises SessionTimeoutError past the deadline, ContextLostError if a kernel has made the GPU unusable for the
        session, SessionLostError if a fault of the device has, if the server shows no sign of life, or if the session
        is dead after an error. Any other exception of the calls passes through, and the session stays usable.
        """
        late = f"no answer within {timeout_secs:g} s"
        silent = f"the server gave no sign of life for {self._silence_secs:g} s"
        with self._dog.guarding(timeout_secs) as guard:
            try:
                yield
            except SessionLostError:
                raise
            except Exception as error:
                guard.active = False
                if guard.silent:
                    raise SessionLostError(silent) from error
                if guard.late:
                    raise SessionTimeoutError(late) from error
                if not self.alive():
                    raise SessionLostError(last_line(error)) from error
                match context_lost_by(str(error)):
                    case LostBy.KERNEL:
                        raise ContextLostError(said(error)) from error
                    case LostBy.DEVICE:
                        raise SessionLostError(said(error)) from error
                raise
        # The last call may return while the session is being cut: report it here, not as a broken pipe of the next
        # call. The result is dropped: the caller has no session to go on with.
        if guard.silent:
            raise SessionLostError(silent)
        if guard.late:
            raise SessionTimeoutError(late)

    def alive(self) -> bool:
        """Return true if the session still answers; false while connecting."""
        if self._socket is None:
            return False
        with self._dog.guarding(_ALIVE_SECS) as guard:
            try:
                self._session.get_function("tvm.rpc.server.upload")
            except Exception:
                return False
        return not (guard.late or guard.silent)

    def cut(self) -> None:
        """Shut the connection down; calls in flight fail. The session is lost."""
        connections = (
            [self._socket] if self._socket else [socket.socket(fileno=os.dup(fd)) for fd in self._new_sockets()]
        )
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if connection is not self._socket:
                connection.close()

    def close(self) -> None:
        """End the session in order, as far as the server cooperates."""
        self._dog.end()
        self.cut()
        for connection in (self._socket, self._watched):
            if connection is not None:
                connection.close()

    def gives_sign_of_life(self, timeout_secs: float) -> bool:
        """Return true if the server answers on the second connection, or there is no second connection."""
        if self._watched is None:
            return True
        try:
            self._watched.settimeout(timeout_secs)
            self._watched.sendall(b"?")
            return self._watched.recv(1) == b"?"
        except OSError:
            return False

    def _watch(self, host: str, port: int, timeout_secs: float, key: ServerKey) -> str | None:
        """Connect to the server and find out whether it is our own. If it is, keep this second connection.

        Return the text that proves to our own server that we have its key; ``None`` for a plain server.
        """
        try:
            connection = socket.create_connection((host, port), timeout=timeout_secs)
        except TimeoutError as error:
            raise SessionTimeoutError(f"no connection to {host}:{port} within {timeout_secs:g} s") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
            reason = getattr(error, "strerror", None) or error
            raise SessionLostError(f"no connection to {host}:{port}: {reason}") from error
        try:
            self._peer = connection.getpeername()
            shown = handshake.watch(connection, timeout_secs, key.secret, key.demanded)
            if shown is not None:
                self._watched = connection
            return shown
        except KeyRefusedError as error:
            raise SessionRefusedError(
                f"the device server at {host}:{port} {error}; copy the key file that it names when it starts, and name "
                'the copy in the fleet file: key_file = "FILE"'
            ) from error
        except TimeoutError as error:
            raise SessionTimeoutError(f"{host}:{port} did not answer within {timeout_secs:g} s") from error
        except (OSError, HandshakeError) as error:
            raise SessionLostError(f"{host}:{port} is not a TVM RPC server, or it ended: {error}") from error
        finally:
            if self._watched is None:
                connection.close()

    def _find_socket(self) -> socket.socket:
        descriptors = self._new_sockets()
        if not descriptors:
            raise SessionLostError("the connection was lost as soon as it was made")
        return socket.socket(fileno=os.dup(max(descriptors)))

    def _new_sockets(self) -> set[int]:
        others = self._others  # read once: the connecting thread may reset it
        return set() if others is None else _sockets_to(self._peer) - others


# Sockets to one address are distinguished by when they appear: one connection is made at a time.
_connecting = threading.Lock()


@contextmanager
def _connecting_alone(deadline: float) -> Iterator[None]:
    if not _connecting.acquire(timeout=max(0.1, deadline - time.monotonic())):
        raise SessionTimeoutError("another connection of this process was being made the whole time")
    try:
        yield
    finally:
        _connecting.release()


def _sockets_to(peer: Any) -> set[int]:
    """Return the descriptors of this process that are sockets connected to ``peer``."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # the descriptor of the listing itself, or closed meanwhile
        with duplicate, contextlib.suppress(OSError):
            if duplicate.getpeername()[:2] == peer[:2]:
                descriptors.add(int(name))
    return descriptors
