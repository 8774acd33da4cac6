"""The first bytes of a connection to Ray's services: HTTP/2, with settings after the client's greeting."""

from __future__ import annotations

# A client sends its preface first, and an empty frame of settings.
_SETTINGS = 4
FRAME_HEAD_BYTES = 9
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])


def are_settings(head: bytes) -> bool:
    """Return true if a frame with this head has settings, as the first frame of a server does."""
    return len(head) >= FRAME_HEAD_BYTES and head[3] == _SETTINGS
