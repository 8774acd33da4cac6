"""What goes to the store in one call, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from actors.clients.recorder import RecorderClient
from actors.scheduling import record_batcher
from actors.scheduling.record_batcher import RecordBatcher, changes_to_store
from actors.scheduling.stage_clock import StageClock
from fleet_tune.base.device_state import DeviceEvent, DeviceState, Lease


def event(device_id: str, kind: str, epoch: int) -> DeviceEvent:
    return DeviceEvent(device_id, "run", kind, "", DeviceState(lease=Lease(epoch=epoch)), 0.0)


def kept(*groups: Sequence[DeviceEvent]) -> list[tuple[str, str, int]]:
    return [(each.device_id, each.kind, each.state.lease.epoch) for each in changes_to_store(groups)]


def test_a_lease_is_kept_where_nothing_of_its_device_follows() -> None:
    assert kept(
        [event("a", "leased", 1), event("b", "leased", 1)],
        [event("a", "released", 1)],
        [event("a", "leased", 2), event("c", "leased", 7)],
        [event("b", "connection_lost", 1)],
        [event("a", "probe_failed", 2), event("a", "released", 2)],
    ) == [("c", "leased", 7), ("b", "connection_lost", 1), ("a", "probe_failed", 2), ("a", "released", 2)]


class Recorder:
    """Stands in for the client: a call ends when there is a permit."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Sequence[DeviceEvent]]] = []
        self.permits = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    async def store(self, batches: Any, events: Sequence[DeviceEvent]) -> int:
        self.calls.append((batches, events))
        await self.permits.acquire()
        if self.failure is not None:
            raise self.failure
        return 0


class Bench:
    def __init__(self) -> None:
        self.recorder = Recorder()
        self.kept: list[int] = []
        self.storing = RecordBatcher(cast("RecorderClient", self.recorder), self.kept.append, StageClock())

    async def called(self, times: int) -> None:
        async with asyncio.timeout(30):
            while len(self.recorder.calls) < times:
                await asyncio.sleep(0.001)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(record_batcher, "LEASES_SECS", 1e6)
    made = Bench()
    running = asyncio.ensure_future(made.storing.run())
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError, OSError):
        await running


async def test_the_first_goes_at_once_and_what_comes_meanwhile_goes_together(bench: Bench) -> None:
    first = bench.storing.store([b"one"], 1)
    await bench.called(1)
    assert bench.recorder.calls == [([([b"one"], 1)], [])]
    others = [bench.storing.store([b"two", b"three"], 7), bench.storing.store([b"four"])]
    assert not first.done(), "nothing is durable before the recorder says so"
    bench.recorder.permits.release()
    await bench.called(2)
    assert first.done()
    assert bench.recorder.calls[1] == ([([b"two", b"three"], 7), ([b"four"], None)], [])
    everything = asyncio.ensure_future(bench.storing.all_stored())
    await asyncio.sleep(0)
    assert not everything.done()
    bench.recorder.permits.release()
    await asyncio.wait_for(everything, 30)
    assert all(each.done() for each in others)


async def test_changes_go_no_earlier_than_records_that_came_before(bench: Bench) -> None:
    bench.storing.store_changes([event("a", "leased", 1)])
    bench.storing.store([b"one"], 1)
    bench.storing.store_changes([event("a", "released", 1), event("a", "leased", 2)])
    bench.recorder.permits.release()
    await bench.called(1)
    assert bench.recorder.calls == [([([b"one"], 1)], [event("a", "leased", 2)])]
    async with asyncio.timeout(30):
        while not bench.kept:
            await asyncio.sleep(0.001)
    assert bench.kept == [2]


async def test_what_is_of_interest_takes_along_what_waits_and_does_not_wait_as_long(bench: Bench) -> None:
    bench.storing.store_changes([event("b", "leased", 1)])
    await asyncio.sleep(0)
    assert not bench.recorder.calls
    bench.storing.store_changes([event("a", "connection_lost", 1)])
    await bench.called(1)
    assert bench.recorder.calls == [([], [event("b", "leased", 1), event("a", "connection_lost", 1)])]


async def test_leases_alone_are_told_of_in_the_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batcher, "LEASES_SECS", 0.0)
    bench.storing.store_changes([event("a", "leased", 1)])
    await bench.called(1)
    assert bench.recorder.calls == [([], [event("a", "leased", 1)])]


async def test_a_recorder_that_cannot_store_ends_it_and_nothing_counts_as_durable() -> None:
    bench = Bench()
    bench.recorder.failure = OSError("the disk is full")
    bench.recorder.permits.release()
    handed_in = bench.storing.store([b"one"], 1)
    with pytest.raises(OSError, match="full"):
        await asyncio.wait_for(bench.storing.run(), 30)
    assert not handed_in.done()
