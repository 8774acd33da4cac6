"""A client of TVM's RPC tracker with a deadline on every wait.

TVM's own client waits for ever: for a tracker that is away (60 s and again), for one that says nothing, and for a free
device. The protocol is small: a magic number, then messages of ``[int32 length][JSON]``, each answered by one.

- ``UPDATE_INFO``: who we are, ``{"key": "server:KEY", "addr": [host, port]}``; the summary lists the servers that have
  sent it.
- ``PUT``: we are free, and serve whoever names this *match key*. A match key is used once.
- ``REQUEST``: give me a free server; answered as soon as there is one.
- ``GET_PENDING_MATCHKEYS``: which of our match keys were not handed out yet?

No TVM is loaded here: a board's server registers with this, and a device actor asks with it.
"""

from __future__ import annotations

import contextlib
import json
import reprlib
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from fleet_tune.base.config.values import is_host

MAGIC = 0x2F271
_SUCCESS, _PUT, _REQUEST, _UPDATE_INFO, _SUMMARY, _PENDING = 0, 3, 4, 5, 6, 7
_INT = struct.Struct("<i")
# Room for the summary of a fleet of thousands; a longer message is no tracker's answer.
_MAX_ANSWER = 4 << 20
_MAX_PORT, _MAX_WORD = 65535, 253
_PRIORITY = 1  # TVM's default


class TrackerError(Exception):
    """The tracker could not be reached, did not answer in time, or sent an invalid answer."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server that a tracker handed out; ``match_key`` opens one session with it."""

    host: str
    port: int
    match_key: str


class TrackerClient:
    """An open connection to the tracker at ``host:port``; ``timeout_secs`` bounds connecting and every answer.

    Raises TrackerError, here and in every method; the connection is of no use afterwards.
    """

    def __init__(self, host: str, port: int, timeout_secs: float) -> None:
        self._name = f"the tracker at {host}:{port}"
        self._timeout_secs = timeout_secs
        deadline = time.monotonic() + timeout_secs
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_secs)
        except TimeoutError as error:
            raise TrackerError(f"{self._name} cannot be reached within {timeout_secs:g} s") from error
        except OSError as error:
            raise TrackerError(f"{self._name} cannot be reached: {error.strerror or error}") from error
        self._greet(deadline)

    @classmethod
    def over(cls, connection: socket.socket, name: str, timeout_secs: float) -> TrackerClient:
        """Return a client over a connection that is open already. ``name``: name of the tracker in messages."""
        client = cls.__new__(cls)
        client._name, client._timeout_secs, client._socket = name, timeout_secs, connection
        client._greet(time.monotonic() + timeout_secs)
        return client

    def _greet(self, deadline: float) -> None:
        try:
            self._send(_INT.pack(MAGIC), deadline)
            if self._read(_INT.size, deadline) != _INT.pack(MAGIC):
                raise TrackerError(f"{self._name} is not a TVM RPC tracker")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> TrackerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def announce(self, key: str, host: str | None, port: int) -> None:
        """Register as a server of ``key``. ``host``: its address; ``None`` for the address from which the tracker sees
        this connection come."""
        self._told(self.ask([_UPDATE_INFO, {"key": f"server:{key}", "addr": [host, port]}]), _SUCCESS)

    def put(self, key: str, host: str | None, port: int, match_key: str) -> None:
        """Offer a session under ``match_key``."""
        self._told(self.ask([_PUT, key, [port, match_key], host]), _SUCCESS)

    def pending(self) -> list[str]:
        """Return the match keys of this connection that were not handed out yet."""
        answer = self.ask([_PENDING])
        if not isinstance(answer, list):
            raise TrackerError(f"{self._name} answered {reprlib.repr(answer)}")
        return [key for key in answer if isinstance(key, str)]

    def request(self, key: str, user: str, timeout_secs: float) -> ServerAddress:
        """Return the next free server of ``key``. Closing the connection withdraws the request."""
        try:
            answer = self.ask([_REQUEST, key, user, _PRIORITY], timeout_secs)
            code, (host, port, match_key) = answer
            self._told(code, _SUCCESS)
            if not (
                _is_word(host)
                and is_host(host)
                and type(port) is int
                and 1 <= port <= _MAX_PORT
                and _is_word(match_key)
            ):
                raise ValueError("not an address")
            return ServerAddress(host, port, match_key)
        except (TypeError, ValueError) as error:
            raise TrackerError(f"{self._name} answered a request with {reprlib.repr(answer)}") from error

    def count(self, key: str) -> tuple[int, int]:
        """Return the number of servers that are listed under ``key``, and how many of them are free."""
        try:
            code, summary = self.ask([_SUMMARY])
            self._told(code, _SUCCESS)
            listed = sum(1 for server in summary["server_info"] if server["key"] == f"server:{key}")
            return listed, int(summary["queue_info"].get(key, {}).get("free", 0))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise TrackerError(f"{self._name} sent no summary") from error

    def ask(self, message: Sequence[Any], timeout_secs: float | None = None) -> Any:
        """Send one message and return its answer."""
        wait_secs = self._timeout_secs if timeout_secs is None else timeout_secs
        deadline = time.monotonic() + wait_secs
        body = json.dumps(message).encode()
        self._send(_INT.pack(len(body)) + body, deadline)
        (length,) = _INT.unpack(self._read(_INT.size, deadline))
        if not 0 < length <= _MAX_ANSWER:
            raise TrackerError(f"{self._name} sent a message of {length} bytes")
        try:
            return json.loads(self._read(length, deadline))
        except ValueError as error:
            raise TrackerError(f"{self._name} sent a message that is not JSON") from error
        except RecursionError as error:
            raise TrackerError(f"{self._name} sent a message that is nested too deeply") from error

    def _told(self, code: Any, expected: int) -> None:
        if code != expected:
            raise TrackerError(f"{self._name} refused: {reprlib.repr(code)}")

    def _send(self, data: bytes, deadline: float) -> None:
        try:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                chunk = self._socket.recv(size - len(data))
            except OSError as error:
                raise self._lost(error) from error
            if not chunk:
                raise TrackerError(f"{self._name} closed the connection")
            data += chunk
        return bytes(data)

    def _lost(self, error: OSError) -> TrackerError:
        if isinstance(error, TimeoutError):
            return TrackerError(f"{self._name} did not answer in time")
        return TrackerError(f"{self._name}: {error.strerror or error}")


def _is_word(text: object) -> bool:
    """Return true if ``text`` can be a host or a key: one word of printable ASCII."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= _MAX_WORD
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )


def listed(host: str, port: int, key: str, timeout_secs: float) -> int:
    """Return the number of servers that the tracker at ``host:port`` lists under ``key``. Raises TrackerError."""
    with TrackerClient(host, port, timeout_secs) as connection:
        return connection.count(key)[0]


def request_server(host: str, port: int, key: str, timeout_secs: float) -> ServerAddress:
    """Return a free server of ``key`` from the tracker at ``host:port``, waiting for one until the deadline.

    Raises TrackerError, which says whether the tracker is away, has no such server, or all of them are busy.
    """
    deadline = time.monotonic() + timeout_secs
    # The tracker answers everything but a request at once.
    answer_secs = min(5.0, timeout_secs)
    with TrackerClient(host, port, answer_secs) as connection:
        try:
            return connection.request(key, "fleet-tune", max(0.001, deadline - time.monotonic()))
        except TrackerError as error:
            if time.monotonic() < deadline:
                raise
            late = error
    why = str(late)
    with contextlib.suppress(TrackerError), TrackerClient(host, port, answer_secs) as connection:
        listed, free = connection.count(key)
        why = (
            f"of {listed} server(s) registered under {key!r} none became free"
            if listed
            else (f"no server is registered under {key!r}")
        )
        if listed and free:
            why = f"{free} of {listed} server(s) under {key!r} are free now"
    raise TrackerError(f"the tracker at {host}:{port} gave no server within {timeout_secs:g} s: {why}") from late
