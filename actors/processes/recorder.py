"""The recorder: the only writer of the record store. No measurement is published before it is durable.

All its state is in the store, so that a process that replaces a lost one goes on where that one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from actors.heartbeat import Heartbeat, heartbeat
from fleet_tune.base.device_state import DeviceEvent, DeviceState, Lease
from fleet_tune.base.domain import Candidate, Measurement, Record, Task
from fleet_tune.base.errors import StaleLeaseError, StoreInUseError
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.records.stores.codec import decode_record, encode_record
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.pages import RecentPages, Row, pack_page
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore

# Time from the beginning of one transaction to the next. Records that arrive meanwhile share a transaction, and so one
# fsync.
_GROUP_COMMIT_SECS = 0.02
_READ_LIMIT = 2048
# The process that this one replaces may still be ending, and hold the store meanwhile: even a killed process ends only
# when the disk that it waits for has answered. A start may take longer than this
# (actors.scheduling.heartbeats.START_SECS).
_ENDING_SECS = 90.0
_LOOK_SECS = 0.05
# Upper bound of the number of leases of a device that may not be stored yet (actors.scheduling.record_batcher).
_UNTOLD_LEASES = 1_000_000
# Number of encoded records that are kept in memory for followers that read the newest records.
_RECENT = 16_384
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Records and events that wait for the commit. ``done``: gets the sequence numbers of the records."""

    records: Sequence[Record]
    events: Sequence[DeviceEvent]
    done: asyncio.Future[list[int]]


class Recorder:
    """Async actor. ``append`` returns after COMMIT; ``follow`` hands out committed records in order of ``seq``."""

    def __init__(self, path: str, meta: Mapping[str, str]) -> None:
        self._store = _opened(Path(path))
        self._store.bind(meta)
        self._reader = RecordReader(Path(path))
        # One thread: the connection has one user, and the event loop stays free while SQLite waits for the disk.
        self._thread = ThreadPoolExecutor(1)
        self._reading = ThreadPoolExecutor(1)
        self._waiting: list[_Waiting] = []
        self._writing: dict[int, float] = {}  # when each write was handed to the writing thread, by its number
        self._writes = itertools.count()
        self._committing: asyncio.Task[None] | None = None
        self._commit_due_secs = 0.0
        self._changed = asyncio.Condition()
        self._last_seq = self._reader.last_seq()
        self._recent = RecentPages(_RECENT)  # the last ones up to _last_seq
        self._device_states = {name: event.state for name, event in self._reader.devices.states().items()}

    async def put_tasks(self, tasks: Sequence[Task]) -> None:
        """Store the tasks' definitions, so that records can be read without the model."""
        for task in tasks:
            await self._in_thread(self._store.put_task, task)

    async def put_classes(self, fingerprints: Sequence[Mapping[str, Any]]) -> None:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.put_classes`."""
        await self._in_thread(self._store.put_classes, fingerprints)

    async def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.put_run`."""
        await self._in_thread(self._store.put_run, run_id, origins)

    async def unit(self, name: str, secs: float) -> float:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.unit`."""
        return await self._in_thread(self._store.unit, name, secs)

    async def append(self, records: Sequence[Record], epoch: int | None = None) -> list[int]:
        """Make ``records`` durable and return their sequence numbers; the same ``uid`` twice is stored once.

        ``epoch``: epoch of the lease under which one device measured all of them; None for records that no device
        measured. Raises :class:`StaleLeaseError` if that lease has ended: the trials may be under way elsewhere.
        """
        self._check_lease(records, epoch)
        return await self._committed(records)

    async def store(
        self, batches: Sequence[tuple[Sequence[bytes], int | None]], events: Sequence[DeviceEvent] = ()
    ) -> int:
        """Make records of devices and changes of devices durable, in one transaction. ``batches``: the records of each
        batch, as :func:`fleet_tune.base.records.stores.codec.encode_record` packs them, and the epoch of their lease as
        for :meth:`append`; they came before the ``events``. Return the number of batches that are not stored because
        their lease has ended."""
        taken: list[Record] = []
        refused = 0
        for bodies, epoch in batches:
            records = [decode_record(body) for body in bodies]
            try:
                self._check_lease(records, epoch)
            except StaleLeaseError:
                refused += 1
            else:
                taken += records
        self._device_states.update({event.device_id: event.state for event in events})
        await self._committed(taken, events)
        return refused

    def _check_lease(self, records: Sequence[Record], epoch: int | None) -> None:
        if epoch is None:
            return
        for device_id in {record.device_id for record in records}:
            lease = self._device_states.get(device_id, DeviceState()).lease
            # A result may overtake the event that begins its lease, but never the event that ends it.
            if not (lease.accepts(epoch) or epoch > lease.epoch):
                raise StaleLeaseError(device_id, epoch, lease.epoch)

    async def append_device_events(self, events: Sequence[DeviceEvent]) -> None:
        """Make changes of devices durable. Results of the leases that they end are refused from now on."""
        self._device_states.update({event.device_id: event.state for event in events})
        await self._committed((), events)

    async def device_states(self) -> dict[str, DeviceState]:
        """Return the last state of every device that this store knows, by device id."""
        return dict(self._device_states)

    async def end_leases(self, device_ids: Iterable[str], run_id: str) -> dict[str, DeviceState]:
        """End all leases of these devices, since the scheduler that leased them is gone. No result under such a lease
        counts from now on, and results that were taken in before are durable. Return the last states as
        :meth:`device_states` does."""
        ended = []
        for device_id in device_ids:
            state = self._device_states.get(device_id, DeviceState())
            free = dataclasses.replace(state, lease=Lease(epoch=state.lease.epoch + _UNTOLD_LEASES))
            ended.append(DeviceEvent(device_id, run_id, "released", "who leased it is gone", free, time.time()))
        await self.append_device_events(ended)
        return await self.device_states()

    async def beat(self) -> Heartbeat:
        """Return a sign of life, also while a thread waits for the disk."""
        return heartbeat()

    async def probed(self, device_id: str, device_class: str, usual_secs: float) -> tuple[float, float]:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.probed`."""
        return await self._in_thread(self._store.probed, device_id, device_class, usual_secs)

    async def shown_speeds(self) -> dict[str, float]:
        """See :meth:`fleet_tune.base.records.stores.stored_speeds.StoredSpeeds.shown`."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._reader.speeds.shown)

    async def calls_timed(self, device_class: str, timed: CallSecs) -> None:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.calls_timed`."""
        await self._in_thread(self._store.calls_timed, device_class, timed)

    async def timed_calls(self) -> dict[str, CallSecs]:
        """See :meth:`fleet_tune.base.records.stores.stored_speeds.StoredSpeeds.timed_calls`."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._reader.speeds.timed_calls)

    async def follow(self, cursor: int, wait_secs: float, traces: bool = False) -> list[bytes]:
        """Return pages of committed records (:mod:`fleet_tune.base.records.stores.pages`): all records with ``seq >
        cursor`` up to some record, and perhaps a few before them. Wait up to ``wait_secs`` for the first, then return
        none. Records contain their traces only if ``traces`` is true, since no search reads them. The caller unpacks
        and decodes the pages, since this process serves many callers."""
        if self._last_seq <= cursor and wait_secs > 0:
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait_for(lambda: self._last_seq > cursor), wait_secs)
        if self._last_seq <= cursor:
            return []
        recent = None if traces else self._recent.since(cursor, _READ_LIMIT)
        if recent is not None:
            return recent
        rows = await asyncio.get_running_loop().run_in_executor(self._reading, self._read, cursor, traces)
        return [pack_page(rows)] if rows else []

    def _read(self, cursor: int, traces: bool) -> list[Row]:
        if not traces:
            return self._reader.encoded_since(cursor, _READ_LIMIT)
        return [(record.seq, encode_record(record)) for record in self._reader.since(cursor, _READ_LIMIT)]

    async def storing_secs(self) -> float:
        """Return the seconds since the oldest unfinished write was handed to its thread; 0 if there is none."""
        now = asyncio.get_running_loop().time()
        return now - min(self._writing.values(), default=now)

    async def last_seq(self) -> int:
        return self._last_seq

    async def close(self) -> None:
        """Commit the records and events that wait, and close the store."""
        if self._committing is not None:
            await asyncio.wait([self._committing])
        await asyncio.get_running_loop().run_in_executor(self._reading, self._reader.close)
        await self._in_thread(self._store.close)

    async def _committed(self, records: Sequence[Record], events: Sequence[DeviceEvent] = ()) -> list[int]:
        """Put these into the next transaction, wait for its commit, and return the sequence numbers of the records."""
        done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(records, events, done))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._commit())
        return await done

    async def _commit(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._waiting:
            await asyncio.sleep(self._commit_due_secs - clock())
            self._commit_due_secs = clock() + _GROUP_COMMIT_SECS
            group, self._waiting = self._waiting, []
            records = [record for one in group for record in one.records]
            events = [event for one in group for event in one.events]
            try:
                seqs, stored = await self._in_thread(self._store.append_encoded, records, events)
            except Exception as error:
                for one in group:
                    one.done.set_exception(error)
                continue
            if stored:
                self._recent.add(stored)
            self._last_seq = max(
                [self._last_seq, *seqs]
            )  # whoever is told that its records are durable may ask for them
            start = 0
            for one in group:
                one.done.set_result(seqs[start : start + len(one.records)])
                start += len(one.records)
            if not stored:
                continue
            async with self._changed:
                self._changed.notify_all()

    async def _in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        loop, number = asyncio.get_running_loop(), next(self._writes)
        self._writing[number] = loop.time()
        try:
            return await loop.run_in_executor(self._thread, function, *args)
        finally:
            del self._writing[number]


def _opened(path: Path) -> RecordStore:
    deadline = time.monotonic() + _ENDING_SECS
    while True:
        try:
            return RecordStore(path)
        except StoreInUseError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_SECS)


def make_record(
    candidate: Candidate, trace: str, measurement: Measurement, run_id: str, device_id: str, revision: int = 0
) -> Record:
    """Return the record of a trial that has just ended, or of a revision (see :class:`fleet_tune.base.domain.Record`).
    If it is stored twice (a retry after a lost answer), it is still one record."""
    return Record(
        uid=f"{run_id}-{candidate.id}{f'-{revision}' if revision else ''}",
        run_id=run_id,
        candidate=candidate,
        trace=trace,
        measurement=measurement,
        device_id=device_id,
        unix_secs=time.time(),
        revision=revision,
    )
