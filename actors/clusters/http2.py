"""How Ray's services begin to talk: as HTTP/2 does, with settings, after the client's greeting."""

from __future__ import annotations

# What a client says first: its preface, and settings (a frame of this type) without any.
_SETTINGS = 4
FRAME_HEAD_BYTES = 9
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])


def are_settings(head: bytes) -> bool:
    """Whether a frame with this head has settings, as the first of a server does."""
    return len(head) >= FRAME_HEAD_BYTES and head[3] == _SETTINGS
