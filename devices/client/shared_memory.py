"""Memory of a GPU that has none of its own: it takes its host's, as on a Jetson.

CUDA grants what is asked for until the host has nothing left: then the kernel ends processes, or the board stands
still. So the host is asked first.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

_RESERVE_BYTES = 256 << 20
_MEBIBYTE = 1 << 20


class NoRoomError(RuntimeError):
    """The device has not the memory that is asked for."""


class AskedSession(Protocol):
    """Part of a session that tells of the memory."""

    ours: bool

    def function(self, name: str) -> Any:
        """Return a packed function of the server."""


class SharedMemory:
    """The memory of a device in one session. Of a device with memory of its own, or behind a server that does not
    tell, everything is admitted: an allocation fails where there is none."""

    def __init__(self, session: AskedSession, kind: str) -> None:
        self._free_bytes: Any = None
        if kind == "cuda" and session.ours:
            with contextlib.suppress(AttributeError, RuntimeError):  # a server of an older version
                self._free_bytes = session.function("fleet_tune.free_bytes")

    def has_room(self, nbytes: int) -> bool:
        """Return true if ``nbytes`` may be allocated, so that the host keeps some memory."""
        return nbytes <= self._room(nbytes)

    def admit(self, nbytes: int) -> None:
        """Raise NoRoomError where :meth:`has_room` is false."""
        room = self._room(nbytes)
        if nbytes > room:
            raise NoRoomError(
                f"it needs {-(-nbytes // _MEBIBYTE)} MiB of memory, and the device has {max(0, room) // _MEBIBYTE} "
                "MiB for it: its GPU shares the memory of its host; end other processes there"
            )

    def _room(self, asked: int) -> int:
        """Return the bytes that may be allocated now; ``asked`` where that is not known."""
        if self._free_bytes is None:
            return asked
        free = int(self._free_bytes())
        if free < 0:  # memory of its own
            self._free_bytes = None
            return asked
        return free - _RESERVE_BYTES
