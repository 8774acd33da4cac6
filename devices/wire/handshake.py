"""The server's side of TVM RPC's handshake, and what our own clients say in it beyond TVM's.

A client sends ``[magic][length]["client:KEY option ..."]`` and is answered ``[code][length]["server:KEY"]`` once it is
served; a code other than success turns it away. TVM's one option is ``-timeout=SECS``, the length of the session; plain
servers ignore options that they do not know. Ours are:

- ``-name=NAME``: which client this is. One that comes back replaces its own old session, which may hang on a connection
  that is dead on the client's side alone; and it is told how that session ended, not how another client's did.

The key ``fleet-tune-watch`` asks for no session but for a second connection, on which every byte is answered by one for
as long as the server lives. A plain server turns that key away: so its answer tells which kind of server it is.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

MAGIC = 0xFF271
_SUCCESS, _MISMATCH = MAGIC, MAGIC + 2
_INT = struct.Struct("<i")
_MAX_KEY = 4096
_WATCH_KEY = "fleet-tune-watch"
_TIMEOUT_SECS = 2.0
# A peer behind a cut network is noticed within about 10 s, with data under way or without.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
_UNACKNOWLEDGED_MILLISECS = 10_000


class HandshakeError(Exception):
    """The other side is not a TVM RPC client, or hung up."""


@dataclass(frozen=True, slots=True)
class Client:
    """A connected client and what it asked for. ``name``: empty where it gave none; ``timeout_secs``: the length of
    the session that it asks for, None for no limit."""

    connection: socket.socket
    key: str
    timeout_secs: float | None
    name: str

    @property
    def watches(self) -> bool:
        return self.key == _WATCH_KEY

    def accept(self, key: str) -> None:
        """Tell the client that it is served, by the server of ``key``. Raises HandshakeError if it is gone."""
        answer = f"server:{key}".encode()
        try:
            self.connection.sendall(_INT.pack(_SUCCESS) + _INT.pack(len(answer)) + answer)
        except OSError as error:
            raise HandshakeError("the client is gone") from error
        self.connection.settimeout(None)

    def refuse(self) -> None:
        """Tell the client that its key is not ours, and hang up."""
        try:
            self.connection.sendall(_INT.pack(_MISMATCH))
        except OSError:
            pass  # it is gone already
        finally:
            self.connection.close()


def read_client(connection: socket.socket) -> Client:
    """What a client that has begun to speak asks for. Raises HandshakeError; waits two seconds at most."""
    connection.settimeout(_TIMEOUT_SECS)
    try:
        detect_cut(connection)
        magic, length = _INT.unpack(_read(connection, _INT.size))[0], _INT.unpack(_read(connection, _INT.size))[0]
        if magic != MAGIC or not 0 < length < _MAX_KEY:
            raise HandshakeError("not a TVM RPC client")
        words = _read(connection, length).decode().split()
        if not words or not words[0].startswith("client:"):
            raise HandshakeError("not a TVM RPC client")
        options = dict(word.partition("=")[::2] for word in words[1:])
        timeout = options.get("-timeout")
        timeout_secs = float(timeout) if timeout else None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise HandshakeError(str(error)) from error
    key = words[0].removeprefix("client:")
    return Client(connection, key, timeout_secs, options.get("-name", ""))


def watch(connection: socket.socket) -> bool:
    """On a client's new connection: whether the server is one of ours, and answers what is sent here from now on.

    Raises HandshakeError if it says what no TVM RPC server says, OSError if it is gone or silent past the timeout that
    is set on the connection.
    """
    body = f"client:{_WATCH_KEY}".encode()
    connection.sendall(_INT.pack(MAGIC) + _INT.pack(len(body)) + body)
    (code,) = _INT.unpack(_read(connection, _INT.size))
    if code == _MISMATCH:
        return False
    if code != _SUCCESS:
        raise HandshakeError("not a TVM RPC server")
    _read(connection, *_INT.unpack(_read(connection, _INT.size)))
    return True


def detect_cut(connection: socket.socket) -> None:
    """Have the kernel end the connection when its other side has not answered for about ten seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECS)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise HandshakeError("the other side hung up")
        data += chunk
    return bytes(data)
