"""How long a device is waited for, and what is sent to it."""

from __future__ import annotations

from dataclasses import dataclass

SLOWEST_LINK_BYTES = 1e6
"""Bytes a second of a link that is slower than those that are reckoned with."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds after which a device counts as lost. ``connect_secs``: until its server answers, or a tracker has one.
    ``upload_secs``: until what is sent to it lies there, beside what its bytes take. ``silence_secs``: until a sign of
    life, while it works."""

    connect_secs: float = 15.0
    upload_secs: float = 60.0
    silence_secs: float = 3.0

    def sending_secs(self, size_bytes: float) -> float:
        """What sending so much may take."""
        return self.upload_secs + size_bytes / SLOWEST_LINK_BYTES
