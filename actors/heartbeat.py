"""The answer of a process of a run to a heartbeat."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fleet_tune.base.waits import WAITS, Line, ProcessWait


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A process says that it is there."""

    restarts: int = 0
    """Number of times that Ray has started this actor again. It tells of a loss between two heartbeats."""
    waits: tuple[ProcessWait, ...] = ()
    """Its waits for other processes."""
    lines: tuple[Line, ...] = ()
    """The last lines that it has for people. Each is told once."""


def heartbeat() -> Heartbeat:
    """The heartbeat of this process."""
    return Heartbeat(_restarts_of_this_actor(), WAITS.waits, WAITS.lines)


@functools.cache
def _restarts_of_this_actor() -> int:
    """Ray counts them itself: none is missed, however soon one process follows another. 0 outside of an actor."""
    import ray

    actor_id = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    if actor_id is None:
        return 0
    # Ray's public call says if there was one (was_current_actor_reconstructed), not how many.
    return int((ray._private.state.actors(actor_id) or {}).get("NumRestarts", 0))
