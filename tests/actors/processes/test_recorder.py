"""The recorder: acknowledged means committed, followers miss nothing and get nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from actors.processes import recorder as recording
from actors.processes.recorder import Recorder, make_record
from actors.scheduling.heartbeats import START_SECS
from fleet_tune.base.device_state import DeviceEvent, DeviceState, Lease
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.base.errors import StaleLeaseError, StoreInUseError
from fleet_tune.base.records.stores.codec import decode_record, encode_record
from fleet_tune.base.records.stores.pages import RecentPages, unpack_pages
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from tests.helpers.tasks import make_task

TASK = make_task("matmul", "cpu-2", weight=3)


def record(number: int, run_id: str = "run") -> Record:
    measurement = Measurement(Outcome.OK, (1e-3 / (number + 1),), verified=True)
    return make_record(Candidate(TASK.id, 0, "s", (number,)), "[]", measurement, run_id, "here")


@pytest.fixture
async def recorder(tmp_path: Path) -> Recorder:
    made = Recorder(str(tmp_path / "records.db"), {"network": "n"})
    await made.put_tasks([TASK])
    return made


async def test_an_acknowledged_record_is_in_the_file(recorder: Recorder, tmp_path: Path) -> None:
    seqs = await recorder.append([record(0), record(1)])
    # Another connection sees only what is committed.
    assert [found.seq for found in RecordReader(tmp_path / "records.db").since(0)] == seqs


async def test_concurrent_appends_get_their_own_sequence_numbers(recorder: Recorder, tmp_path: Path) -> None:
    answers = await asyncio.gather(*(recorder.append([record(2 * i), record(2 * i + 1)]) for i in range(20)))
    stored = {found.seq: found.candidate.decisions[0] for found in RecordReader(tmp_path / "records.db")}
    assert [[stored[seq] for seq in seqs] for seqs in answers] == [[2 * i, 2 * i + 1] for i in range(20)]


async def test_the_same_trial_twice_is_one_record(recorder: Recorder) -> None:
    first = await recorder.append([record(5)])
    assert await recorder.append([record(5)]) == first
    assert await recorder.append([record(5, "later run")]) != first


async def test_a_follower_gets_every_record_once_in_order(recorder: Recorder) -> None:
    got: list[int] = []

    async def follow() -> None:
        cursor = 0
        while len(got) < 30:
            got.extend(seq for seq, _ in unpack_pages(await recorder.follow(cursor, 5.0), cursor))
            cursor = got[-1]

    following = asyncio.create_task(follow())
    for number in range(30):
        await recorder.append([record(number)])
    await asyncio.wait_for(following, 30.0)
    assert got == sorted(set(got))
    assert len(got) == 30


async def test_following_an_idle_store_returns_nothing_after_the_wait(recorder: Recorder) -> None:
    (seq,) = await recorder.append([record(0)])
    assert await recorder.follow(seq, 0.0) == []


async def test_records_that_are_there_come_without_waiting(recorder: Recorder) -> None:
    (seq,) = await recorder.append([record(0)])
    assert [found for found, _ in unpack_pages(await recorder.follow(0, 0.0), 0)] == [seq]


async def test_records_come_the_same_from_memory_and_from_the_file(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("actors.processes.recorder._READ_LIMIT", 7)
    for number in range(10):
        await recorder.append([record(2 * number), record(2 * number + 1)])
    wanted = [(found.seq, found.candidate.decisions) for found in RecordReader(tmp_path / "records.db")]
    for memory in (True, False):
        if not memory:
            recorder._recent = RecentPages(1)
        for traces in (False, True):
            got: list[Record] = []
            while page := unpack_pages(await recorder.follow(cursor := got[-1].seq if got else 0, 0.0, traces), cursor):
                assert len(page) <= 8  # whole commits, of two here
                got += [decode_record(body, seq) for seq, body in page]
            assert [(found.seq, found.candidate.decisions) for found in got] == wanted
            assert {found.trace for found in got} == {"[]" if traces else ""}


async def test_a_failing_store_fails_the_append_and_the_next_one_works(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[int]:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(recorder._store, "append_encoded", refuse)
        with pytest.raises(OSError, match="no"):
            await recorder.append([record(0)])
    assert await recorder.append([record(0)]) == [1]


async def test_a_restarted_recorder_continues_the_sequence(recorder: Recorder, tmp_path: Path) -> None:
    (before,) = await recorder.append([record(0)])
    await recorder.close()
    again = Recorder(str(tmp_path / "records.db"), {"network": "n"})
    assert await again.last_seq() == before
    (after,) = await again.append([record(1)])
    assert after > before


def leased(epoch: int, owner: str = "run") -> DeviceEvent:
    state = DeviceState(lease=Lease(owner, 100.0 if owner else 0.0, epoch))
    return DeviceEvent("here", "run", "leased" if owner else "released", "because", state, 1.0)


async def test_results_of_an_old_lease_are_refused(recorder: Recorder, tmp_path: Path) -> None:
    await recorder.append_device_events([leased(3)])
    await recorder.append([record(0)], epoch=3)
    await recorder.append([record(1)], epoch=4)  # overtook the event of its own lease
    await recorder.append([record(2)])  # no device measured it: a failed build
    with pytest.raises(StaleLeaseError, match="lease 2"):
        await recorder.append([record(3)], epoch=2)
    await recorder.append_device_events([leased(3, owner="")])
    with pytest.raises(StaleLeaseError, match="lease 3"):
        await recorder.append([record(4)], epoch=3)
    stored = [found.candidate.decisions[0] for found in RecordReader(tmp_path / "records.db")]
    assert stored == [0, 1, 2]


async def test_batches_of_many_devices_and_what_changed_of_them_are_one_transaction(
    recorder: Recorder, tmp_path: Path
) -> None:
    await recorder.append_device_events([leased(3)])
    batches = [
        ([encode_record(record(0)), encode_record(record(1))], 3),
        ([encode_record(record(2))], 2),
        ([encode_record(record(3))], None),
    ]
    # The batch came before the end of its lease.
    assert await recorder.store(batches, [leased(3, owner="")]) == 1
    with RecordReader(tmp_path / "records.db") as reader:
        assert [(found.candidate.decisions[0], found.trace) for found in reader.since(0, 10)] == [
            (0, "[]"),
            (1, "[]"),
            (3, "[]"),
        ]
        assert reader.devices.states()["here"].state.lease == Lease(epoch=3)
    # Whoever has not heard the answer asks again: nothing is doubled, and what is stored stays.
    assert await recorder.store(batches, [leased(3, owner="")]) == 2
    assert await recorder.last_seq() == 3


async def test_a_restarted_recorder_knows_the_states_of_the_devices(recorder: Recorder, tmp_path: Path) -> None:
    assert await recorder.device_states() == {}
    await recorder.append_device_events([leased(3), leased(3, owner="")])
    await recorder.close()
    again = Recorder(str(tmp_path / "records.db"), {"network": "n"})
    assert await again.device_states() == {"here": leased(3, owner="").state}
    with pytest.raises(StaleLeaseError):
        await again.append([record(0)], epoch=3)


async def test_nothing_counts_that_was_leased_by_one_who_is_gone(recorder: Recorder, tmp_path: Path) -> None:
    await recorder.append_device_events([leased(4)])
    states = await recorder.end_leases(["here", "there"], "run")
    assert {name: (state.lease.held, state.lease.epoch) for name, state in states.items()} == {
        "here": (False, 1_000_004),
        "there": (False, 1_000_000),
    }
    # Also of leases that nobody has told of.
    for epoch in (4, 5, 500):
        with pytest.raises(StaleLeaseError):
            await recorder.append([record(0)], epoch)
    with RecordReader(tmp_path / "records.db") as reader:
        assert {name: event.state for name, event in reader.devices.states().items()} == states
    await recorder.append_device_events([leased(1_000_005)])
    assert await recorder.append([record(0)], 1_000_005) == [1]


async def test_what_was_taken_in_before_leases_ended_is_there_when_they_have(recorder: Recorder) -> None:
    appending = [asyncio.ensure_future(recorder.append([record(number)])) for number in range(5)]
    await asyncio.sleep(0)
    await recorder.end_leases(["here"], "run")
    assert await recorder.last_seq() == 5
    assert [seqs for [seqs] in await asyncio.gather(*appending)] == [1, 2, 3, 4, 5]


async def test_a_recorder_waits_for_the_end_of_the_one_whose_place_it_takes(tmp_path: Path) -> None:
    before = RecordStore(tmp_path / "records.db")
    opening = asyncio.ensure_future(asyncio.to_thread(Recorder, str(tmp_path / "records.db"), {"network": "n"}))
    await asyncio.sleep(0)
    before.close()
    assert await (await opening).last_seq() == 0


def test_one_that_a_slow_disk_keeps_from_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    secs, ends_at = 0.0, 60.0

    def sleep(more: float) -> None:
        nonlocal secs
        secs += more

    def opened(_path: Path) -> str:
        if secs < ends_at:
            raise StoreInUseError("another run (process 1) is writing to records.db", "wait until it ends")
        return "the store"

    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=lambda: secs, sleep=sleep))
    monkeypatch.setattr(recording, "RecordStore", opened)
    assert recording._opened(Path("records.db")) == "the store"
    secs, ends_at = 0.0, 1e9
    with pytest.raises(StoreInUseError):
        recording._opened(Path("records.db"))
    assert secs < START_SECS  # later, its own start would be taken for silence


async def test_a_store_that_another_run_writes_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.processes.recorder._ENDING_SECS", 0.0)
    with RecordStore(tmp_path / "records.db"), pytest.raises(StoreInUseError, match="is writing to"):
        Recorder(str(tmp_path / "records.db"), {"network": "n"})
