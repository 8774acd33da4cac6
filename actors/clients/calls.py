"""Calls between actors. Every wait has a deadline, and Ray's errors are translated here and nowhere else."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from fleet_tune.base.errors import FleetTuneError

T = TypeVar("T")
WINDOW_WAIT_SECS = 900.0
"""Longest wait for a quiet window, or for its end: a window may last a dozen measurements that all time out."""


class ActorLostError(FleetTuneError):
    """The actor's process has ended: start it again, or give its work to another one."""


class ActorDeadError(ActorLostError):
    """The actor's process has ended, and no other process replaces it."""


class ActorTimeoutError(FleetTuneError):
    """The actor did not answer within the deadline: treat its work as not done."""


LOST = (ActorLostError, ActorTimeoutError)
"""Errors of a call where the other process has ended or hangs."""


async def ask(reference: Any, deadline_secs: float | None, what: str) -> Any:
    """Await an object reference for at most ``deadline_secs``, or without a deadline if that is None.

    Raises the actor's own exception if it raised one, :class:`ActorLostError` if its process has ended
    (:class:`ActorDeadError` if no other process replaces it), and :class:`ActorTimeoutError` at the deadline. ``what``
    names the call in the message.
    """
    try:
        async with asyncio.timeout(deadline_secs):
            return await reference
    except RayTaskError as error:  # first: it is also an instance of the actor's exception, say a TimeoutError
        raise _own_error(error) from error
    except TimeoutError:
        raise ActorTimeoutError(f"{what}: no answer within {deadline_secs:g} s") from None
    except RayError as error:
        raise _lost(error, what) from error


def fetch(reference: Any, deadline_secs: float, what: str) -> Any:
    """:func:`ask` for an actor without an event loop: waits in the calling thread."""
    try:
        return ray.get(reference, timeout=deadline_secs)
    except RayTaskError as error:
        raise _own_error(error) from error
    except GetTimeoutError:
        raise ActorTimeoutError(f"{what}: no answer within {deadline_secs:g} s") from None
    except RayError as error:
        raise _lost(error, what) from error


def _lost(error: RayError, what: str) -> ActorLostError:
    kind = ActorDeadError if isinstance(error, ActorDiedError) else ActorLostError
    return kind(f"{what}: {_gone(error)}")


def _gone(error: RayError) -> str:
    """Describe the loss of an actor, without Ray's ids if only its process has ended."""
    return "its process ended" if isinstance(error, ActorUnavailableError) else first_line(error)


def _own_error(error: RayTaskError) -> Exception:
    """The exception that the actor raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


GC_THRESHOLDS = (200_000, 20, 100)
"""Thresholds of the garbage collector for a process that keeps all records. With the default thresholds, collections
take half of the time of a start and find almost no garbage."""


def relax_garbage_collection() -> None:
    """Set :data:`GC_THRESHOLDS` in an actor's process. Other processes keep theirs, since they do other work too."""
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        gc.set_threshold(*GC_THRESHOLDS)


def remote_actor(
    cls: type,
    *,
    restarts: int = 0,
    concurrency: int | None = None,
    groups: Mapping[str, int] | None = None,
    **options: Any,
) -> Any:
    """Make the Ray class of a plain class. Actors take no CPU share: quiet windows and bounded queues decide what runs,
    not Ray's counting. ``groups``: threads of each concurrency group, beside the actor's own."""
    settings: dict[str, Any] = {"num_cpus": 0, "max_restarts": restarts, **options}
    if concurrency is not None:
        settings["max_concurrency"] = concurrency
    actor_class = ray.remote(cls) if groups is None else ray.remote(concurrency_groups=dict(groups))(cls)
    return actor_class.options(**settings)


class ByValue(Generic[T]):
    """A small value for the constructor of an actor that Ray may restart, pickled: it travels in the call itself, and
    Ray sees no handle of another actor in it."""

    def __init__(self, value: T) -> None:
        self._packed = ray.cloudpickle.dumps(value)

    def get(self) -> T:
        value: T = ray.cloudpickle.loads(self._packed)
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and self._packed == other._packed

    def __hash__(self) -> int:
        return hash(self._packed)


def error_line(error: BaseException) -> str:
    """Describe an error in one line. The class is part of it unless the error is our own: other texts were not written
    for people."""
    if isinstance(error, FleetTuneError):
        return first_line(error)
    return f"{type(error).__name__}: {last_line(error)}"


def last_line(error: BaseException) -> str:
    """The last line of an error's text. If the text contains a traceback, this line names the error."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else "no reason is given"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class if the text is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
