"""Settings of the process that serves sessions, as its parent gives them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from devices.host.limits.confinement import SessionLimits
from devices.server.registration import TrackerAddress


@dataclass(frozen=True, slots=True)
class SessionServerSettings:
    """Settings that the parent gives this process on its command line."""

    listening: int
    """Descriptor of the listening socket."""
    lock: int
    """Descriptor of the folder's lock, which this process only keeps open."""
    folder: str
    key: str
    decide: str | None
    limits: SessionLimits
    tracker: TrackerAddress | None
    user: str | None
    realtime: bool
    before: str = ""
    """How the process that this one replaces ended; empty if that does not concern its clients."""
    root: str = "/"
    """Folder with the system's files that describe the machine."""

    def to_json(self) -> str:
        """Return the settings as text for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SessionServerSettings:
        """Return the settings that :meth:`to_json` wrote."""
        given = json.loads(text)
        tracker = given.pop("tracker")
        limits = SessionLimits(**given.pop("limits"))
        return cls(**given, limits=limits, tracker=TrackerAddress(**tracker) if tracker else None)
