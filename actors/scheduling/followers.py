"""The sources of events that the scheduler follows in the background: durable records, and people's orders."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path

from actors.clients.recorder import GATHER_SECS, RecorderClient
from fleet_tune.base.device_state import Admin, DeviceState
from fleet_tune.base.errors import FleetOrdersError
from fleet_tune.base.records.orders import FleetOrders
from policies.runs import events as ev

_LOG = logging.getLogger(__name__)
_FOLLOW_SECS = 2.0
_POLL_SECS = 1.0


class RecordFollower:
    """Hands in records as they become durable, beginning with the records of earlier runs.

    Args:
        recorder: has the records.
        hand_in: is called with each event.
    """

    def __init__(self, recorder: RecorderClient, hand_in: Callable[[ev.Event], None]) -> None:
        self._recorder = recorder
        self._hand_in = hand_in
        self._cursor = 0
        """Sequence number of the last record that was handed in."""
        self._moved = asyncio.Condition()

    async def run(self) -> None:
        """Follow the records for ever."""
        wait_secs = 0.0
        while True:
            records = await self._recorder.follow(self._cursor, wait_secs)
            if records:
                self._hand_in(ev.RecordsCommitted(tuple(records)))
                async with self._moved:
                    self._cursor = records[-1].seq
                    self._moved.notify_all()
                if wait_secs:
                    await asyncio.sleep(GATHER_SECS)
            elif wait_secs == 0.0:
                self._hand_in(ev.RecordsCaughtUp())
                wait_secs = _FOLLOW_SECS

    async def catch_up(self) -> None:
        """Wait until all records that are durable now have been handed in."""
        seq = await self._recorder.last_seq()
        async with self._moved:
            await self._moved.wait_for(lambda: self._cursor >= seq)


class OrderFollower:
    """Hands in the states of the devices at the start, then the orders of people for them.

    Args:
        path: the file of the orders (:mod:`fleet_tune.base.records.orders`); None if the fleet has none.
        recorder: has the stored states of the devices.
        hand_in: is called with each event.
    """

    def __init__(self, path: Path | None, recorder: RecorderClient, hand_in: Callable[[ev.Event], None]) -> None:
        self._orders = None if path is None else FleetOrders(path)
        self._recorder = recorder
        self._hand_in = hand_in

    async def run(self, now: Callable[[], float]) -> None:
        """Hand in the states, then look for orders every second, for ever. ``now``: returns the seconds since the run
        began."""
        latest = {} if self._orders is None else await asyncio.to_thread(self._orders.latest)
        states = await self._recorder.device_states()
        speeds, calls = await self._recorder.shown_speeds(), await self._recorder.timed_calls()
        wanted = {device_id: (order.admin, order.reason) for device_id, order in latest.items()}
        self._hand_in(ev.DevicesRestored(states, wanted, time.time() - now(), speeds, calls))
        cursor = max((order.seq for order in latest.values()), default=0)
        warned = False
        while self._orders is not None:
            await asyncio.sleep(_POLL_SECS)
            try:
                orders = await asyncio.to_thread(self._orders.since, cursor)
            except FleetOrdersError as error:
                if not warned:
                    _LOG.warning("%s", error)
                warned = True
                continue
            for order in orders:
                cursor = order.seq
                self._hand_in(ev.AdminRequested(order.device_id, order.admin, order.reason))

    async def with_state(self, event: ev.DeviceAdded) -> ev.DeviceAdded:
        """Return the event with the last stored state of the device, and with the last order of people for it."""
        states = await self._recorder.device_states()
        latest = {} if self._orders is None else await asyncio.to_thread(self._orders.latest)
        order = latest.get(event.device_id)
        admin, reason = (Admin.ACTIVE, "") if order is None else (order.admin, order.reason)
        state = states.get(event.device_id, DeviceState())
        return dataclasses.replace(event, state=state, admin=admin, reason=reason)
