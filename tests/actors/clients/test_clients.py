"""The clients: what a lost or silent actor is to whoever asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors.clients.calls import ActorDeadError, ActorLostError, ActorTimeoutError
from actors.clients.device import DeviceClient, TaskArtifacts, fingerprint_of
from actors.clients.learner import LearnerClient
from actors.clients.recorder import RecorderClient
from actors.clients.searcher import SearcherClient
from actors.heartbeat import Heartbeat
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record, StopRule
from fleet_tune.base.errors import RecorderLostError
from fleet_tune.base.records.stores.codec import encode_record
from fleet_tune.base.records.stores.pages import pack_page
from fleet_tune.base.waits import ProcessWait
from policies.runs.events import BatchMeasured, Proposed


class Actor:
    """Stands in for an actor's handle: each method answers by a coroutine function of that name."""

    def __init__(self, **methods: Callable[..., Awaitable[Any]]) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Method(self._methods[name])


class Method:
    def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
        self.remote = answer

    def options(self, **_options: Any) -> Method:
        return self


class Window:
    """Stands in for a quiet window: seconds that stopped processes ran."""

    def __init__(self) -> None:
        self.ran_secs = 0.0

    def clock(self) -> float:
        return self.ran_secs


def record(seq: int) -> Record:
    candidate = Candidate("task", 0, "s", (seq,))
    return Record(f"r{seq}", "run", candidate, "", Measurement(Outcome.OK, (1.0,)), "device", 0.0, seq)


async def test_records_are_streamed_past_a_recorder_that_is_lost_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clients.base._RETRY_SECS", 0.001)
    asked: list[tuple[int, float]] = []
    fails = [ActorLostError("gone"), ActorTimeoutError("silent")]

    async def follow(cursor: int, wait_secs: float, _traces: bool) -> list[bytes]:
        asked.append((cursor, wait_secs))
        if cursor == 2 and fails:
            raise fails.pop()
        rows = [(at, encode_record(record(at))) for at in range(cursor + 1, min(cursor + 3, 4))]
        return [pack_page(rows)] if rows else []

    groups = []
    async for records in RecorderClient(Actor(follow=follow)).stream():
        groups.append([each.seq for each in records])
        if len(groups) == 4:
            break
    assert groups == [[1, 2], [3], [], []]
    assert [cursor for cursor, _ in asked] == [0, 2, 2, 2, 3, 3]
    # It waits for the next one only once it has read what is there.
    assert [wait_secs > 0 for _, wait_secs in asked] == [False, False, False, False, False, True]


async def test_each_model_is_fetched_once_and_a_lost_learner_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clients.base._RETRY_SECS", 0.001)
    published = {"a": (16, b"first"), "b": (17, b"other")}
    fails = [ActorLostError("gone")]

    async def weights(value: bytes) -> bytes:
        return value

    async def follow(versions: dict[str, int], _wait_secs: float) -> dict[str, tuple[int, list[Any]]]:
        if versions and fails:
            published["a"] = (20, b"second")
            raise fails.pop()
        return {
            key: (version, [weights(value)])
            for key, (version, value) in published.items()
            if version > versions.get(key, 0)
        }

    models = []
    async for fresh in LearnerClient(Actor(follow=follow)).stream():
        models.append(fresh)
        if len(models) == 2:
            break
    assert models == [{"a": b"first", "b": b"other"}, {"a": b"second"}]


async def test_a_device_without_a_sign_of_life_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clients.waiting._BEAT_EVERY_SECS", 0.001)
    monkeypatch.setattr("actors.clients.waiting.BEAT_SECS", 0.01)
    beats = 0

    async def measure(*_arguments: Any) -> BatchMeasured:
        await asyncio.Event().wait()
        raise AssertionError

    async def beat() -> Heartbeat:
        nonlocal beats
        beats += 1
        if beats > 3:
            await asyncio.Event().wait()
        return Heartbeat()

    device = DeviceClient(Actor(measure=measure, beat=beat), "target", RecorderClient(None))
    with pytest.raises(ActorTimeoutError, match="no sign of life"):
        await device.measure([], {}, StopRule(), 1, 900.0)
    assert beats == 5  # three answered, two missed in a row


async def test_each_call_of_a_device_says_in_which_power_mode_the_run_measures_it() -> None:
    """Its process may be started again between any two calls, and forgets what it was told."""
    told: list[Any] = []

    async def called(*arguments: Any) -> Any:
        told.append(arguments[-1])

    actor = Actor(probe=called, measure=called, shoot_out=called)
    device = DeviceClient(actor, "", RecorderClient(None)).of_class("target", "MAXN (0)")
    await device.probe()
    await device.measure([], {}, StopRule(), 1, 900.0)
    await device.shoot_out([], TaskArtifacts([]), StopRule(), 1, 900.0)
    assert told == ["MAXN (0)"] * 3


async def test_a_device_whose_process_ended_says_so_by_its_work() -> None:
    async def measure(*_arguments: Any) -> BatchMeasured:
        raise ActorLostError("it ended")

    device = DeviceClient(Actor(measure=measure), "target", RecorderClient(None))
    with pytest.raises(ActorLostError, match="it ended"):
        await device.measure([], {}, StopRule(), 1, 900.0)


@pytest.mark.parametrize("goes_on", [True, False])
async def test_seconds_in_which_a_searcher_stands_still_are_none_of_its_silence(
    monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    monkeypatch.setattr("actors.clients.waiting._BEAT_EVERY_SECS", 0.001)
    monkeypatch.setattr("actors.clients.waiting.BEAT_SECS", 0.001)
    monkeypatch.setattr("actors.clients.searcher._START_SECS", 0.001)
    monkeypatch.setattr("actors.clients.base._RETRY_SECS", 0.001)
    window, opened = Window(), asyncio.Event()
    offer = Proposed("task", 1, (), True, 0.0)
    beats = 0

    async def propose(*_arguments: Any) -> Proposed:
        await opened.wait()
        return offer

    async def beat() -> Heartbeat:
        nonlocal beats
        beats += 1
        if beats == 20:  # the window is closed
            if goes_on:
                opened.set()
            else:
                window.ran_secs = 1.0
        if beats <= 30:
            await asyncio.Event().wait()
        return Heartbeat()

    searcher = SearcherClient(Actor(propose=propose, beat=beat), window)
    if goes_on:
        assert await searcher.propose("task", 1, 0) is offer
    else:
        with pytest.raises(ActorTimeoutError, match="the searcher gives no sign of life"):
            await searcher.propose("task", 1, 0)
    assert beats == 20
    opened.set()
    if not goes_on:  # the one that takes its place begins in the next window
        assert await searcher.propose("task", 1, 0) is offer
        assert beats == 31


async def test_a_searcher_may_read_for_as_long_as_it_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clients.waiting._BEAT_EVERY_SECS", 0.001)
    monkeypatch.setattr("actors.clients.searcher._START_SECS", 0.001)
    monkeypatch.setattr("actors.clients.base._RETRY_SECS", 0.001)
    read, beats = asyncio.Event(), 0

    async def start() -> None:
        await read.wait()

    async def beat() -> Heartbeat:
        nonlocal beats
        beats += 1
        if beats == 30:
            read.set()
        return Heartbeat()

    await SearcherClient(Actor(start=start, beat=beat)).start()
    assert beats == 30


async def test_seconds_in_which_a_learner_stands_still_are_none_of_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clients.learner._FOLLOW_SECS", 0.001)
    monkeypatch.setattr("actors.clients.learner._FOLLOW_SPARE_SECS", 0.001)
    monkeypatch.setattr("actors.clients.waiting._LOOK_AGAIN_SECS", 0.001)
    ended: list[object] = []
    monkeypatch.setattr("actors.clients.learner.end_process", ended.append)
    looks = 0

    class Stopped(Window):
        def clock(self) -> float:
            nonlocal looks
            looks += 1
            if looks == 20:
                self.ran_secs = 1.0
            return super().clock()

    async def failure(_wait_secs: float) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    learner = Actor(failure=failure)
    failures = LearnerClient(learner, Stopped()).failures()
    assert await anext(failures) == "learner: no answer within 0.002 s"
    assert looks == 20
    assert ended == [learner]
    await failures.aclose()


async def test_what_a_lost_recorder_did_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clients.recorder._RETRY_RECORDER_SECS", 0.001)
    fails: list[Exception] = [ActorLostError("its process ended"), ActorLostError("it starts")]
    handed_in: list[list[Record]] = []

    async def append(records: list[Record], _epoch: int | None) -> list[int]:
        handed_in.append(records)
        if fails:
            raise fails.pop()
        return [7]

    assert await RecorderClient(Actor(append=append)).append([record(1)], 3) == [7]
    assert handed_in == [[record(1)]] * 3


@pytest.mark.parametrize(
    ("error", "store_secs"), [(ActorDeadError("it is dead"), 600.0), (ActorLostError("it starts"), 0.1)]
)
async def test_a_recorder_that_never_comes_back_is_lost(
    error: Exception, store_secs: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.clients.recorder._STORE_SECS", store_secs)

    async def last_seq() -> int:
        raise error

    with pytest.raises(RecorderLostError, match="is lost: " + str(error)):
        await RecorderClient(Actor(last_seq=last_seq)).last_seq()


async def test_what_a_device_waits_for_itself_is_told_until_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clients.waiting._BEAT_EVERY_SECS", 0.001)
    done = asyncio.Event()
    told: list[str] = []
    wait = ProcessWait("the quiet window of this machine", "process 42 (stopped)", 3.0)

    async def fingerprint() -> str:
        await done.wait()
        return "print"

    async def beat() -> Heartbeat:
        return Heartbeat(waits=(wait,))

    def tell(text: str) -> None:
        told.append(text)
        done.set()

    assert await fingerprint_of(Actor(fingerprint=fingerprint, beat=beat), "cpu", tell) == "print"
    text = "device cpu waits for the quiet window of this machine, which process 42 (stopped) has (3 s so far)"
    assert set(told[:-1]) == {text}
    assert told[-1] == ""
