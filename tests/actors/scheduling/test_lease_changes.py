"""Which changes of devices go to the store, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from actors.scheduling import lease_changes
from actors.scheduling.lease_changes import gathered, worth_keeping
from fleet_tune.device_state import DeviceEvent, DeviceState, Lease


def event(device_id: str, kind: str, epoch: int) -> DeviceEvent:
    return DeviceEvent(device_id, "run", kind, "", DeviceState(lease=Lease(epoch=epoch)), 0.0)


def kept(*groups: Sequence[DeviceEvent]) -> list[tuple[str, str, int]]:
    return [(each.device_id, each.kind, each.state.lease.epoch) for each in worth_keeping(groups)]


def test_a_lease_is_kept_where_nothing_of_its_device_follows() -> None:
    assert kept(
        [event("a", "leased", 1), event("b", "leased", 1)],
        [event("a", "released", 1)],
        [event("a", "leased", 2), event("c", "leased", 7)],
        [event("b", "connection_lost", 1)],
        [event("a", "probe_failed", 2), event("a", "released", 2)],
    ) == [("c", "leased", 7), ("b", "connection_lost", 1), ("a", "probe_failed", 2), ("a", "released", 2)]


async def test_what_is_of_interest_takes_along_what_waits_and_does_not_wait_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_changes, "LEASES_SECS", 1e6)
    waiting: asyncio.Queue[Sequence[DeviceEvent]] = asyncio.Queue()
    first, second = [event("a", "leased", 1)], [event("a", "connection_lost", 1)]
    waiting.put_nowait(first)
    async with asyncio.timeout(30):
        taking = asyncio.ensure_future(gathered(waiting))
        await asyncio.sleep(0)
        waiting.put_nowait(second)
        assert await taking == [first, second]
    monkeypatch.setattr(lease_changes, "LEASES_SECS", 0.0)
    waiting.put_nowait(first)
    async with asyncio.timeout(30):
        assert await gathered(waiting) == [first]
