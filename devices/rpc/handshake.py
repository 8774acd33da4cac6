"""The server's side of TVM RPC's handshake, and the options that our own clients add to it.

A client sends ``[magic][length]["client:KEY option ..."]`` and gets the answer ``[code][length]["server:KEY"]`` once it
is served; a code other than success refuses it. TVM's one option is ``-timeout=SECS``, the length of the session; plain
servers ignore options that they do not know. Ours are:

- ``-name=NAME``: identifies the client. A client that comes back replaces its own old session, which may hang if only
  the client's side of the old connection is dead. It is told how that session ended, not how another client's session
  did.
- ``-challenge=NUMBER -proof=PROOF``: proves that the client knows the server's key (:mod:`devices.rpc.keys`).

The key ``fleet-tune-watch`` does not ask for a session, but for a second connection on which the server answers every
byte by one as long as it lives. A plain server refuses that key, so the answer tells which kind of server it is. A
server that has a secret key proves it in its answer, for the number in ``-challenge``. It also sends a number of its
own, for which the client proves the key when it asks for a session.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from dataclasses import dataclass, field

from devices.rpc.keys import new_challenge, proof, proves

MAGIC = 0xFF271
_SUCCESS, _MISMATCH = MAGIC, MAGIC + 2
_INT = struct.Struct("<i")
_MAX_KEY = 4096
_WATCH_KEY = "fleet-tune-watch"
# The longest session that can be asked for: the limit of the kernel's timers.
_LONGEST_SECS = 2e6
# A peer behind a cut network is noticed within about 10 s, with data under way or without.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
_UNACKNOWLEDGED_MILLISECS = 10_000


class HandshakeError(Exception):
    """The other side is not a TVM RPC client, or hung up."""


class KeyRefusedError(HandshakeError):
    """The server and we do not have the same key."""


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A connected client and what it asked for."""

    connection: socket.socket
    key: str
    timeout_secs: float | None = None
    """Longest duration of the session that it asks for; ``None`` for no limit."""
    name: str = ""
    """Empty where it gave none."""
    challenge: str = ""
    """Number for which it proves the key; empty if it gave none."""
    proof: str = field(default="", repr=False)

    @property
    def watches(self) -> bool:
        return self.key == _WATCH_KEY

    def accept(self, key: str) -> None:
        """Tell the client that the server of ``key`` serves it. Reads from the connection block from then on.

        Raises HandshakeError if it is gone.
        """
        self._answer(f"server:{key}")
        self.connection.setblocking(True)

    def accept_watcher(self, key: str, secret: bytes | None) -> str:
        """Accept a client that watches. Returns the number for which it has to prove ``secret``; empty if there is no
        secret."""
        if secret is None:
            self._answer(f"server:{key}")
            return ""
        challenge = new_challenge()
        shown = proof(secret, "server", self.challenge, challenge)
        self._answer(f"server:{key} -challenge={challenge} -proof={shown}")
        return challenge

    def knows(self, secret: bytes) -> bool:
        """Return true if the client has proven the secret, for the number that it names."""
        return proves(secret, self.proof, "client", self.challenge)

    def refuse(self) -> None:
        """Tell the client that its key is not ours, and hang up."""
        try:
            self.connection.sendall(_INT.pack(_MISMATCH))
        except OSError:
            pass  # it is gone already
        finally:
            self.connection.close()

    def _answer(self, text: str) -> None:
        answer = text.encode()
        try:
            # This does not block: the answer is shorter than the kernel's buffer of a fresh connection.
            self.connection.sendall(_INT.pack(_SUCCESS) + _INT.pack(len(answer)) + answer)
        except OSError as error:
            raise HandshakeError("the client is gone") from error


class ClientHello:
    """The first message of a new client. It is read as it arrives, without blocking."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._said = bytearray()

    def heard(self) -> ConnectedClient | None:
        """Return the client once its message is complete; None until then. To be called when there is something to
        read.

        Raises HandshakeError if it is no TVM RPC client, or hung up.
        """
        try:
            if not self._said:
                self._connection.setblocking(False)
                detect_cut(self._connection)
            while (missing := self._missing()) > 0:
                chunk = self._connection.recv(missing)
                if not chunk:
                    raise HandshakeError("the other side hung up")
                self._said += chunk
        except BlockingIOError:
            return None
        except OSError as error:
            raise HandshakeError(str(error)) from error
        return parsed(self._connection, bytes(self._said[2 * _INT.size :]))

    def _missing(self) -> int:
        """Return the number of bytes of the message that are known to be missing. Nothing after the message is read."""
        head = 2 * _INT.size
        if len(self._said) >= _INT.size and _INT.unpack_from(self._said)[0] != MAGIC:
            raise HandshakeError("not a TVM RPC client")
        if len(self._said) < head:
            return head - len(self._said)
        length = int(_INT.unpack_from(self._said, _INT.size)[0])
        if not 0 < length < _MAX_KEY:
            raise HandshakeError("not a TVM RPC client")
        return head + length - len(self._said)


def parsed(connection: socket.socket, said: bytes) -> ConnectedClient:
    """Return the client that sent this message. Raises HandshakeError."""
    key, options = _words(said, "client:")
    try:
        secs = float(options.get("-timeout") or 0)
    except ValueError as error:
        raise HandshakeError("not a TVM RPC client") from error
    if not (math.isfinite(secs) and secs >= 0):
        raise HandshakeError("not a TVM RPC client")
    asked = (options.get(name, "") for name in ("-name", "-challenge", "-proof"))
    return ConnectedClient(connection, key, min(secs, _LONGEST_SECS) or None, *asked)


def watch(connection: socket.socket, timeout_secs: float, secret: bytes | None, demanded: bool) -> str | None:
    """Start watching a server on a client's new connection.

    Returns the text to add to the key when this server is asked for a session; ``None`` if it is not our own server.
    Our own server answers every byte that is sent on this connection from now on. ``demanded``: true to refuse a server
    that has no key.

    Raises HandshakeError if the answer is not that of a TVM RPC server, KeyRefusedError if the server does not have the
    key ``secret``, OSError if it is gone, TimeoutError past the deadline.
    """
    deadline = time.monotonic() + timeout_secs
    challenge = new_challenge()
    body = f"client:{_WATCH_KEY} -challenge={challenge}".encode()
    connection.settimeout(timeout_secs)
    connection.sendall(_INT.pack(MAGIC) + _INT.pack(len(body)) + body)
    (code,) = _INT.unpack(_read(connection, _INT.size, deadline))
    if code not in (_SUCCESS, _MISMATCH):
        raise HandshakeError("not a TVM RPC server")
    options: dict[str, str] = {}
    if code == _SUCCESS:
        (length,) = _INT.unpack(_read(connection, _INT.size, deadline))
        if not 0 <= length < _MAX_KEY:
            raise HandshakeError("not a TVM RPC server")
        _, options = _words(_read(connection, length, deadline), "server:")
    theirs = options.get("-challenge", "")
    if not theirs:
        if demanded:
            raise KeyRefusedError("asks for no key, and so is not the server of this key file")
        return "" if code == _SUCCESS else None
    if secret is None:
        raise KeyRefusedError("asks for a key")
    if not proves(secret, options.get("-proof", ""), "server", challenge, theirs):
        raise KeyRefusedError("has another key")
    return f" -challenge={theirs} -proof={proof(secret, 'client', theirs)}"


def detect_cut(connection: socket.socket) -> None:
    """Have the kernel end the connection when its other side has not answered for about ten seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECS)


def _words(said: bytes, begin: str) -> tuple[str, dict[str, str]]:
    """Return the key of ``BEGINkey -option=value ...``, and the options."""
    try:
        words = said.decode().split()
    except UnicodeDecodeError as error:
        raise HandshakeError("the message is not text") from error
    if not words or not words[0].startswith(begin):
        raise HandshakeError("not a message of TVM's RPC")
    return words[0].removeprefix(begin), dict(word.partition("=")[::2] for word in words[1:])


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise HandshakeError("the other side hung up")
        data += chunk
    return bytes(data)
