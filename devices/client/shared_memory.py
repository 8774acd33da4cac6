"""Memory of a GPU that shares the memory of its host, as on a Jetson.

CUDA grants every allocation until the host has no memory left. Then the operating system ends processes, or the board
stands still. So the host's free memory is checked before an allocation.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

_RESERVE_BYTES = 256 << 20
_MEBIBYTE = 1 << 20


class NoRoomError(RuntimeError):
    """The device does not have enough memory for an allocation."""


class AskedSession(Protocol):
    """The part of a session that reports free memory."""

    ours: bool

    def function(self, name: str) -> Any:
        """Return a packed function of the server."""


class SharedMemory:
    """The memory of a device in one session. Every size is admitted for a device with memory of its own, and for a
    server that does not report its memory: there an allocation fails if memory is short."""

    def __init__(self, session: AskedSession, kind: str) -> None:
        self._free_bytes: Any = None
        if kind == "cuda" and session.ours:
            with contextlib.suppress(AttributeError, RuntimeError):  # a server of an older version
                self._free_bytes = session.function("fleet_tune.free_bytes")

    def has_room(self, nbytes: int) -> bool:
        """Return true if the host keeps some free memory after an allocation of ``nbytes``."""
        return nbytes <= self._room(nbytes)

    def admit(self, nbytes: int) -> None:
        """Raise NoRoomError if :meth:`has_room` is false."""
        room = self._room(nbytes)
        if nbytes > room:
            raise NoRoomError(
                f"it needs {-(-nbytes // _MEBIBYTE)} MiB of memory, and the device has {max(0, room) // _MEBIBYTE} "
                "MiB for it: its GPU shares the memory of its host; end other processes there"
            )

    def _room(self, asked: int) -> int:
        """Return the bytes that may be allocated now; ``asked`` if that is not known."""
        if self._free_bytes is None:
            return asked
        free = int(self._free_bytes())
        if free < 0:  # memory of its own
            self._free_bytes = None
            return asked
        return free - _RESERVE_BYTES
