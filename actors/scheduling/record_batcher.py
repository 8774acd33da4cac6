"""The batches in which a run makes records of its devices, and changes of the devices, durable.

A call of the recorder takes both sides more processor time than a hundred records do. So there is one call at a time,
and what comes meanwhile goes in the next: records of a single device at once, those of many devices together. Changes
of devices are sent with them. A lease begins and ends with every batch, so a lease alone waits longer than other
changes, and it is not stored if another change of its device follows.

Records go before changes that came before them, never after changes that came later: the end of a lease never overtakes
what was measured under it. The recorder needs no more: a result under a lease that it has not heard of is newer than
all that it has, and the loss of a device, which ends a lease before its results have come, is stored at once.
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
"""Interval of the calls, and the longest wait of a change that is no lease."""
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
        on_stored: is called with the number of groups of changes, as they were handed in, that have become durable.
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
        """Store records, as :func:`fleet_tune.base.records.stores.codec.encode_record` packs them. Returns a future
        that is set when they are durable. ``epoch``: of the lease under which they were measured; where it has ended,
        they are not stored."""
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
        """Store for ever. Raises RecorderLostError, and what the recorder raises where it cannot store."""
        while True:
            await self._until_due()
            self._called_secs, self._due_secs = asyncio.get_running_loop().time(), math.inf
            batches, self._batches = self._batches, []
            groups, self._changes = self._changes, []
            for batch in batches:
                self._stages.begin_commit(len(batch.records), self._called_secs - batch.came_secs)
            sent = [(batch.records, batch.epoch) for batch in batches]
            refused = await self._recorder.store(sent, changes_to_store(groups))
            if refused:  # also where all of it was stored, and the answer was lost
                _LOG.info("%d batches of leases that have ended: they are stored already, or never", refused)
            if batches:
                self._stages.end_commit(sum(len(batch.records) for batch in batches), self._called_secs)
            for batch in batches:
                batch.durable.set_result(None)
            if groups:
                self._on_stored(len(groups))

    def _wake(self, within_secs: float) -> None:
        """Call the recorder within so many seconds."""
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
    """The changes that are stored, in their order: a lease only where it is the last change of its device."""
    events = [event for events in groups for event in events]
    last = {event.device_id: at for at, event in enumerate(events)}
    return [event for at, event in enumerate(events) if event.kind not in LEASE_KINDS or last[event.device_id] == at]
