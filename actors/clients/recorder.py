"""The client of the recorder."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from actors.clients.base import RestartedClient, retrying
from actors.clients.calls import (
    LOST,
    ActorDeadError,
    ActorLostError,
    ActorTimeoutError,
    ask,
    fetch,
    first_line,
)
from fleet_tune.base.device_state import DeviceEvent, DeviceState
from fleet_tune.base.domain import Record, Task
from fleet_tune.base.errors import RecorderLostError
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.records.stores.codec import readable_records
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.pages import unpack_pages

# Longest time for one call of the recorder, and the time after which people are told that it is slow.
_STORE_SECS = 600.0
_SLOW_SECS = 5.0
_LOOK_SECS = 1.0
_RETRY_RECORDER_SECS = 0.2
_FOLLOW_SECS = 5.0
GATHER_SECS = 0.25
"""Pause of a follower of the recorder between two calls, in which records gather: a call costs both sides more time
than a hundred records. The first record after a quiet time comes at once. A batch takes longer than this pause, so that
it delays no record if there are few devices."""


class RecorderClient(RestartedClient):
    """See :class:`actors.processes.recorder.Recorder`. A call waits as long as a busy disk may take, and until another
    process has replaced a lost one. Then the call is repeated, so that every call may be made twice. A run cannot go on
    without the recorder.

    Every call may raise :class:`fleet_tune.base.errors.RecorderLostError` instead of the usual errors of calls.
    """

    async def put_tasks(self, tasks: Sequence[Task]) -> None:
        await self._asked(lambda: self._actor.put_tasks.remote(tasks), "store the tasks")

    async def append(self, records: Sequence[Record], epoch: int | None = None) -> list[int]:
        """Make records durable, and return their sequence numbers. Raises StaleLeaseError."""
        seqs: list[int] = await self._asked(lambda: self._actor.append.remote(records, epoch), "store records")
        return seqs

    def append_and_wait(self, records: Sequence[Record], epoch: int | None = None) -> None:
        """:meth:`append` for an actor without an event loop."""
        self.fetched(lambda actor: actor.append.remote(records, epoch), "store records")

    def probed_and_wait(self, device_id: str, device_class: str, usual_secs: float) -> tuple[float, float]:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.probed`. For an actor without an event loop."""
        unit_secs, shown_speed = self.fetched(
            lambda actor: actor.probed.remote(device_id, device_class, usual_secs), "note a device's probe"
        )
        return unit_secs, shown_speed

    async def shown_speeds(self) -> dict[str, float]:
        """Return, for each class, the speed at which its seconds are shown to people, if it is known."""
        speeds: dict[str, float] = await self._asked(
            lambda: self._actor.shown_speeds.remote(), "read the speeds of devices"
        )
        return speeds

    def calls_timed_and_wait(self, device_class: str, timed: CallSecs) -> None:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.calls_timed`. For an actor without an event
        loop."""
        self.fetched(lambda actor: actor.calls_timed.remote(device_class, timed), "note what calls take")

    async def timed_calls(self) -> dict[str, CallSecs]:
        """Return the extra time of a call on each class, if it is known."""
        calls: dict[str, CallSecs] = await self._asked(
            lambda: self._actor.timed_calls.remote(), "read what calls take on devices"
        )
        return calls

    async def store(
        self, batches: Sequence[tuple[Sequence[bytes], int | None]], events: Sequence[DeviceEvent] = ()
    ) -> int:
        """See :meth:`actors.processes.recorder.Recorder.store`."""
        refused: int = await self._asked(lambda: self._actor.store.remote(batches, events), "store records")
        return refused

    async def device_states(self) -> dict[str, DeviceState]:
        """Return the last state of every device that the store knows."""
        states: dict[str, DeviceState] = await self._asked(
            lambda: self._actor.device_states.remote(), "read the states of devices"
        )
        return states

    async def end_leases(self, device_ids: Sequence[str], run_id: str) -> None:
        """See :meth:`actors.processes.recorder.Recorder.end_leases`."""
        await self._asked(lambda: self._actor.end_leases.remote(device_ids, run_id), "end the leases of devices")

    async def follow(self, cursor: int, wait_secs: float, traces: bool = False) -> list[Record]:
        """Return committed records with ``seq > cursor``, with their traces only if ``traces`` is true. Wait up to
        ``wait_secs`` for the first record, then return none. Records that cannot be decoded are left out, as in the
        store."""
        while True:
            pages: list[bytes] = await self._asked(
                functools.partial(self._actor.follow.remote, cursor, wait_secs, traces), "follow the records"
            )
            bodies = unpack_pages(pages, cursor)
            records = readable_records(bodies)
            if records or not bodies:
                return records
            cursor = bodies[-1][0]

    async def stream(self, cursor: int = 0) -> AsyncIterator[list[Record]]:
        """Yield committed records as they come, in groups. An empty group comes once all existing records are read, and
        whenever no record has come for a while. A recorder that does not answer is asked again, for as long as
        necessary."""
        wait_secs = 0.0
        while True:
            async for attempt in retrying():
                with attempt:
                    records = await self.follow(cursor, wait_secs)
            yield records
            if not records:
                wait_secs = _FOLLOW_SECS
                continue
            cursor = records[-1].seq
            if wait_secs:
                await asyncio.sleep(GATHER_SECS)

    async def last_seq(self) -> int:
        seq: int = await self._asked(lambda: self._actor.last_seq.remote(), "say what it has")
        return seq

    async def troubles(self) -> AsyncIterator[tuple[str, bool]]:
        """Yield a line and False each time that the recorder becomes slow, and a line and True when it is no longer
        slow.

        Raises RecorderLostError if it is gone for good, or has not answered for ``_STORE_SECS``."""
        clock = asyncio.get_running_loop().time
        answered_at, slow_secs = clock(), 0.0
        while True:
            await asyncio.sleep(_LOOK_SECS)
            try:
                storing_secs: float = await ask(self._actor.storing_secs.remote(), _SLOW_SECS, "a sign of life")
                answered_at = clock()
            except ActorDeadError as error:
                raise _recorder_lost(first_line(error)) from error
            except LOST:
                storing_secs = clock() - answered_at
            if storing_secs >= _STORE_SECS:
                raise _recorder_lost(f"it has stored nothing for {storing_secs:.0f} s")
            if slow_secs and storing_secs < _SLOW_SECS:
                yield f"the recorder stores again, after {slow_secs:.0f} s", True
                slow_secs = 0.0
            elif storing_secs >= _SLOW_SECS:
                if not slow_secs:
                    yield "the recorder is slow: the run waits for it", False
                slow_secs = storing_secs

    async def close(self) -> None:
        """Close the store. Acknowledged records are already durable."""
        await ask(self._actor.close.remote(), 1.0, "close the record store")

    async def _asked(self, call: Callable[[], Any], what: str) -> Any:
        """Return the answer to ``call``. The call is repeated when the recorder's process was lost and another one
        replaces it."""
        deadline = time.monotonic() + _STORE_SECS
        while True:
            with _recorder_answers(deadline):
                return await ask(call(), max(0.0, deadline - time.monotonic()), what)
            await asyncio.sleep(_RETRY_RECORDER_SECS)

    def fetched(self, call: Callable[[Any], Any], what: str) -> Any:
        """Return the answer to ``call`` of the actor, for callers without an event loop; see :meth:`_asked`."""
        deadline = time.monotonic() + _STORE_SECS
        while True:
            with _recorder_answers(deadline):
                return fetch(call(self._actor), max(0.0, deadline - time.monotonic()), what)
            time.sleep(_RETRY_RECORDER_SECS)


class StoreWriter:
    """The store of a run under way, for threads that write more than records into it. The methods are those of
    :class:`fleet_tune.base.records.stores.store.RecordStore`, and raise the errors of calls of the recorder."""

    def __init__(self, recorder: RecorderClient) -> None:
        self._recorder = recorder

    def put_classes(self, fingerprints: Sequence[Mapping[str, Any]]) -> None:
        self._done("put_classes", fingerprints)

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        self._done("put_run", run_id, origins)

    def unit(self, name: str, secs: float) -> float:
        return float(self._done("unit", name, secs))

    def append(self, records: Sequence[Record]) -> list[int]:
        return list(self._done("append", records))

    def _done(self, method: str, *arguments: Any) -> Any:
        return self._recorder.fetched(lambda actor: getattr(actor, method).remote(*arguments), "write into the store")


@contextlib.contextmanager
def _recorder_answers(deadline: float) -> Iterator[None]:
    """Suppress the loss of the recorder's process, so that the caller repeats the call. Raise RecorderLostError if the
    deadline is near, or if another try would not help."""
    try:
        yield
    except (ActorDeadError, ActorTimeoutError) as error:
        raise _recorder_lost(first_line(error)) from error
    except ActorLostError as error:
        if time.monotonic() + _RETRY_RECORDER_SECS >= deadline:
            raise _recorder_lost(first_line(error)) from error


def _recorder_lost(detail: str) -> RecorderLostError:
    return RecorderLostError(
        f"the recorder, which stores the records, is lost: {detail}",
        "look at the disk that the output folder is on, and run the same command again: it resumes",
    )
