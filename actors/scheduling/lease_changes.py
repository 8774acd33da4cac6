"""Changes of devices on their way to the store. A lease begins and ends with every batch, and is told of later than
what is of interest: most are over by then, and one that another change of its device follows is none of the store's.

The recorder needs no more: a result under a lease that it has not heard of is newer than all that it has, and the loss
of a device, which ends a lease before its results have come, is told at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from fleet_tune.device_state import LEASE_KINDS, DeviceEvent

GATHER_SECS = 0.05
LEASES_SECS = 0.25


async def gathered(waiting: asyncio.Queue[Sequence[DeviceEvent]]) -> list[Sequence[DeviceEvent]]:
    """The next changes, in groups as they came, with those of a moment; of leases alone, with those of a longer one."""
    groups = [await waiting.get()]
    clock, until = asyncio.get_running_loop().time, math.inf
    while True:
        leases_alone = all(event.kind in LEASE_KINDS for event in groups[-1])
        until = min(until, clock() + (LEASES_SECS if leases_alone else GATHER_SECS))
        try:
            async with asyncio.timeout_at(until):
                groups.append(await waiting.get())
        except TimeoutError:
            return groups


def worth_keeping(groups: Sequence[Sequence[DeviceEvent]]) -> list[DeviceEvent]:
    """What is to be stored of these changes, in order: a lease only where it is the last of its device."""
    events = [event for events in groups for event in events]
    last = {event.device_id: at for at, event in enumerate(events)}
    return [event for at, event in enumerate(events) if event.kind not in LEASE_KINDS or last[event.device_id] == at]
