"""Batches of records and of device changes, in which a run makes them durable.

A call of the recorder costs both sides more processor time than a hundred records. So only one call runs at a time, and
everything that comes meanwhile goes into the next call: records of a single device go at once, records of many devices
go together. Changes of devices are sent with the records. A lease begins and ends with every batch, so a lease alone
waits longer than other changes, and it is not stored if another change of its device follows.

Records may be stored before changes that came earlier, but never after changes that came later: the end of a lease
never overtakes results that were measured under it. The recorder needs no stricter order. A result under a lease that
it does not know yet is newer than all leases that it knows, and the loss of a device, which ends a lease before its
results have come, is stored at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.clients.recorder import RecorderClient
from actors.scheduling.stage_clock import StageClock
from fleet_tune.base.device_state import LEASE_KINDS, DeviceEvent

_LOG = logging.getLogger(__name__)
GATHER_SECS = 0.05
"""Shortest interval between calls, and the longest wait of a change that is no lease."""
LEASES_SECS = 0.25
"""Longest wait of a lease."""


@dataclass(frozen=True, slots=True)
class _Batch:
    records: Sequence[bytes]
    """Records as the codec packs them."""
    epoch: int | None
    """Epoch of the lease under which they were measured."""
    durable: asyncio.Future[None]
    """Set when they are durable."""
    came_secs: float
    """When they were handed in, by the loop's clock."""


class RecordBatcher:
    """Makes records and changes of devices durable, in batches.

    Args:
        recorder: stores them.
        on_stored: is called with the number of groups of changes that have become durable. A group was handed in by one
            call.
        stages: counts the records and their times.
    """

    def __init__(self, recorder: RecorderClient, on_stored: Callable[[int], None], stages: StageClock) -> None:
        self._recorder = recorder
        self._on_stored = on_stored
        self._stages = stages
        self._batches: list[_Batch] = []
        self._changes: list[Sequence[DeviceEvent]] = []
        self._last: asyncio.Future[None] | None = None
        """Set when the last batch that was handed in is durable."""
        self._called_secs = -math.inf
        self._due_secs = math.inf
        self._sooner = asyncio.Event()

    def store(self, records: Sequence[bytes], epoch: int | None = None) -> asyncio.Future[None]:
        """Store records, as :func:`fleet_tune.base.records.stores.codec.encode_record` packs them. Return a future that
        is set when they are durable. ``epoch``: epoch of the lease under which they were measured. If that lease has
        ended, they are not stored."""
        loop = asyncio.get_running_loop()
        self._last = loop.create_future()
        self._batches.append(_Batch(records, epoch, self._last, loop.time()))
        self._wake(0.0)
        return self._last

    def store_changes(self, changes: Sequence[DeviceEvent]) -> None:
        """Store changes of devices, in their order."""
        self._changes.append(changes)
        self._wake(LEASES_SECS if all(each.kind in LEASE_KINDS for each in changes) else GATHER_SECS)

    async def all_stored(self) -> None:
        """Wait until all records that were handed in by now are durable."""
        if self._last is not None:
            await asyncio.wait([self._last])

    async def run(self) -> None:
        """Store for ever. Raises RecorderLostError, and the recorder's error if it cannot store."""
        while True:
            await self._until_due()
            self._called_secs, self._due_secs = asyncio.get_running_loop().time(), math.inf
            batches, self._batches = self._batches, []
            groups, self._changes = self._changes, []
            for batch in batches:
                self._stages.begin_commit(len(batch.records), self._called_secs - batch.came_secs)
            sent = [(batch.records, batch.epoch) for batch in batches]
            refused = await self._recorder.store(sent, changes_to_store(groups))
            if refused:  # also if all of it was stored and only the answer was lost
                _LOG.info("%d batches of leases that have ended: they are stored already, or never", refused)
            if batches:
                self._stages.end_commit(sum(len(batch.records) for batch in batches), self._called_secs)
            for batch in batches:
                batch.durable.set_result(None)
            if groups:
                self._on_stored(len(groups))

    def _wake(self, within_secs: float) -> None:
        """Have the recorder called within ``within_secs``, but not sooner than ``GATHER_SECS`` after the last call."""
        due_secs = max(asyncio.get_running_loop().time() + within_secs, self._called_secs + GATHER_SECS)
        if due_secs < self._due_secs:
            self._due_secs = due_secs
            self._sooner.set()

    async def _until_due(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._due_secs > clock():
            self._sooner.clear()
            try:
                async with asyncio.timeout_at(None if math.isinf(self._due_secs) else self._due_secs):
                    await self._sooner.wait()
            except TimeoutError:
                return


def changes_to_store(groups: Sequence[Sequence[DeviceEvent]]) -> list[DeviceEvent]:
    """Return the changes to store, in order. A lease is stored only if it is the last change of its device."""
    events = [event for events in groups for event in events]
    last = {event.device_id: at for at, event in enumerate(events)}
    return [event for at, event in enumerate(events) if event.kind not in LEASE_KINDS or last[event.device_id] == at]
