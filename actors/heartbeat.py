"""The answer of a process of a run to a heartbeat."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fleet_tune.base.waits import WAITS, Line, ProcessWait


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of a process."""

    restarts: int = 0
    """Number of times that Ray has started this actor again. It reveals a loss between two heartbeats."""
    waits: tuple[ProcessWait, ...] = ()
    """Waits of the process for other processes."""
    lines: tuple[Line, ...] = ()
    """The last lines that the process has for people. Each line is shown once."""


def heartbeat() -> Heartbeat:
    """The heartbeat of this process."""
    return Heartbeat(_restarts_of_this_actor(), WAITS.waits, WAITS.lines)


@functools.cache
def _restarts_of_this_actor() -> int:
    """Return how often Ray has restarted this actor; 0 outside an actor. Ray counts restarts itself, so that none is
    missed, however quickly they follow each other."""
    import ray

    actor_id = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    if actor_id is None:
        return 0
    # Ray's public call (was_current_actor_reconstructed) tells whether there was a restart, not how many.
    return int((ray._private.state.actors(actor_id) or {}).get("NumRestarts", 0))
