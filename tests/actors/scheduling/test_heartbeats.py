"""Signs of life: who is told of when, and who is ended, by a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from actors.clients.calls import ActorDeadError, ActorLostError
from actors.heartbeat import Heartbeat
from actors.scheduling import heartbeats
from actors.scheduling.heartbeats import PATIENCE_SECS, SILENT_SECS, START_SECS, Heartbeats, WatchedProcess
from fleet_tune.base.results import ProcessRole
from fleet_tune.base.waits import Line, ProcessWait
from policies.runs.events import ProcessRestarted

LOOK_SECS = 0.5


class Clock:
    """Moves by a look each time that somebody looks, as if as much time had passed."""

    def __init__(self, secs_a_look: float = LOOK_SECS) -> None:
        self.secs = 0.0
        self._secs_a_look = secs_a_look

    def __call__(self) -> float:
        self.secs += self._secs_a_look
        return self.secs


@dataclass
class Process:
    """Stands in for one: ``beats`` are its answers in turn, None for silence until it is ended; then it answers."""

    beats: list[BaseException | str | int | Heartbeat | None]
    ended: int = 0
    restarts: int = 0
    told: list[str] = field(default_factory=list)
    counted: int = 0
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def beat(self) -> Heartbeat:
        answer = self.beats.pop(0) if self.beats else "well"
        if isinstance(answer, BaseException):
            self.restarts += isinstance(answer, ActorLostError) and not isinstance(answer, ActorDeadError)
            raise answer
        if answer is None:
            await self._gone.wait()
            self._gone.clear()
            self.restarts += 1
            raise ActorLostError("a sign of life: its process ended")
        if isinstance(answer, Heartbeat):
            return answer
        if isinstance(answer, int):
            self.restarts = answer
        return Heartbeat(self.restarts)

    def end(self) -> None:
        self.ended += 1
        self._gone.set()

    def restarted(self, event: ProcessRestarted) -> None:
        self.counted += event.times
        self.tell(event.text, False)

    def tell(self, text: str, well: bool) -> None:
        self.told.append(f"{'well' if well else 'bad'}: {text}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a time to pass: it passes by looking."""
    monkeypatch.setattr(heartbeats, "EVERY_SECS", 0.0)
    waits = asyncio.wait

    async def wait(tasks: list[asyncio.Future[None]], timeout: float) -> object:
        assert timeout == LOOK_SECS
        return await waits(tasks, timeout=0.0)

    monkeypatch.setattr(heartbeats.asyncio, "wait", wait)


async def watched(process: Process, until: Callable[[Heartbeats], bool], clock: Clock | None = None) -> Heartbeats:
    clock = clock or Clock()
    made = Heartbeats(
        [WatchedProcess("builder 1", ProcessRole.BUILDER, process.beat, process.end, clock=clock)],
        process.tell,
        process.restarted,
        lambda: round(clock.secs, 1),
    )
    watching = asyncio.ensure_future(made.watch())
    async with asyncio.timeout(60.0):
        while not until(made):
            await asyncio.sleep(0)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    return made


async def test_a_process_that_is_gone_is_known_at_once_and_until_another_answers() -> None:
    process = Process(["well", ActorLostError("its process ended"), ActorDeadError("it is dead")])
    made = await watched(process, lambda made: bool(made.silent))
    assert list(made.silent) == ["builder 1"]
    assert process.told == ["bad: the process of builder 1 has ended: another takes its place"]
    process.beats, process.restarts = [ActorLostError("it starts"), "well"], 0
    process.told.clear()
    made = await watched(process, lambda _made: len(process.told) == 2)
    assert made.silent == {}
    assert process.told[1].startswith("well: builder 1 answers again, after ")
    assert process.ended == 0


async def test_what_is_back_between_two_heartbeats_is_told_and_counted() -> None:
    process = Process([0, 1, 1, 4])
    made = await watched(process, lambda _made: len(process.told) == 2)
    assert process.told == [
        "bad: the process of builder 1 has ended: another takes its place",
        "bad: the process of builder 1 has ended 3 times: another takes its place",
    ]
    assert process.counted == 4
    process.beats = [6]
    await made.look(60.0)
    assert process.counted == 6


async def test_waits_for_other_processes_are_told_when_they_begin_and_end() -> None:
    whom = "process 42 (device cpu of run 12ab)"
    answers = [
        Heartbeat(),
        Heartbeat(waits=(ProcessWait("the window", whom, 2.1),)),
        Heartbeat(waits=(ProcessWait("the window", whom, 4.2),)),
        Heartbeat(waits=(ProcessWait("the window", "process 43", 6.0), ProcessWait("the lock", whom, 2.0))),
        Heartbeat(waits=(ProcessWait("the lock", whom, 4.0),), lines=(Line(3, "taken from process 43"),)),
        Heartbeat(lines=(Line(3, "taken from process 43"), Line(4, "more"))),
        Heartbeat(restarts=1, lines=(Line(3, "said by another process"),)),
    ]
    process = Process(list(answers))
    await watched(process, lambda _made: not process.beats)
    assert process.told[:-1] == [
        f"bad: builder 1 waits for the window, which {whom} has (2 s so far)",
        f"bad: builder 1 waits for the lock, which {whom} has (2 s so far)",
        "bad: builder 1 waits for the window, which process 43 has (6 s so far)",
        "bad: taken from process 43",
        "well: builder 1 goes on: it waited for the window, which process 43 has",
        "bad: more",
        f"well: builder 1 goes on: it waited for the lock, which {whom} has",
        "bad: the process of builder 1 has ended: another takes its place",
    ]
    assert process.told[-1] == "bad: said by another process"


async def test_a_loss_that_was_told_is_counted_once() -> None:
    process = Process(["well", ActorLostError("its process ended"), ActorLostError("it starts"), 2, 2])
    await watched(process, lambda _made: not process.beats)
    assert process.counted == 2  # the first one, and the one that was lost while it started
    assert sum("has ended" in text for text in process.told) == 2
    # A process that could not be reached, and was not started again.
    process = Process([0, ActorLostError("the network"), 0, 1])
    await watched(process, lambda _made: not process.beats)
    assert process.counted == 2


async def test_a_process_that_is_gone_for_good_is_said_to_be_so_once() -> None:
    process = Process(["well", ActorDeadError("its file is gone"), ActorDeadError("its file is gone"), "well"])
    await watched(process, lambda _made: len(process.told) == 2)
    assert process.told[0] == "bad: the process of builder 1 has ended for good: its file is gone"
    assert process.told[1].startswith("well: builder 1 answers again")


async def test_what_goes_wrong_with_the_watching_is_told_and_everybody_is_still_watched() -> None:
    strange = Process(["well", ValueError("no such thread"), "well", ActorLostError("its process ended"), "well"])
    other = Process(["well"] * 5 + [ActorLostError("its process ended"), "well"])
    told: list[str] = []
    members = [
        WatchedProcess("builder 1", ProcessRole.BUILDER, strange.beat, strange.end, clock=Clock()),
        WatchedProcess("builder 2", ProcessRole.BUILDER, other.beat, other.end, clock=Clock()),
    ]
    made = Heartbeats(members, lambda text, _well: told.append(text), lambda event: told.append(event.text), Clock())
    watching = asyncio.ensure_future(made.watch())
    async with asyncio.timeout(60.0):
        while sum("answers again" in text for text in told) < 2:
            await asyncio.sleep(0)
    watching.cancel()
    assert told[0] == "watching builder 1 failed and begins anew: ValueError: no such thread"
    for name in ("builder 1", "builder 2"):
        assert f"the process of {name} has ended: another takes its place" in told


async def test_a_process_that_hangs_is_told_within_ten_seconds_and_ended_once() -> None:
    process, clock = Process(["well", None]), Clock()
    made = await watched(process, lambda made: bool(made.silent), clock)
    [since] = made.silent.values()
    assert clock.secs - since <= heartbeats.SILENT_SECS + 4 * LOOK_SECS  # the test's clock moves with every look
    assert process.told == ["bad: builder 1 gives no sign of life"]

    process = Process(["well", None])
    await watched(process, lambda _made: len(process.told) == 4)
    assert process.told[1] == f"bad: builder 1 gave no sign of life for {PATIENCE_SECS:.0f} s: its process is ended"
    assert process.told[2] == "bad: the process of builder 1 has ended: another takes its place"
    assert process.told[3].startswith("well: builder 1 answers again")
    assert process.ended == process.counted == 1


async def test_a_process_may_take_long_to_start() -> None:
    process, clock = Process([None]), Clock()
    await watched(process, lambda _made: process.ended == 1, clock)
    assert clock.secs >= START_SECS
    assert process.told[0] == f"bad: builder 1 gave no sign of life for {START_SECS:.0f} s: its process is ended"


async def test_who_stands_still_in_a_window_is_not_silent() -> None:
    process, clock = Process(["well", None]), Clock(secs_a_look=0.0)
    looks = 0

    def looked(made: Heartbeats) -> bool:
        nonlocal looks
        looks += 1
        return looks > 100 * SILENT_SECS / LOOK_SECS or bool(made.silent)

    made = await watched(process, looked, clock)
    assert made.silent == {}
    assert process.ended == 0


async def test_seconds_in_which_the_watching_process_stood_still_are_nobodys_silence() -> None:
    process, clock = Process(["well", None]), Clock(secs_a_look=1000.0)
    made = await watched(process, lambda made: bool(made.silent), clock)
    assert made.silent
    looks = clock.secs / 1000.0
    assert looks >= SILENT_SECS / (2 * LOOK_SECS)


async def test_of_many_builders_and_devices_a_few_are_asked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def sleeping(secs: float) -> None:
        slept.append(secs)
        await sleep(0)

    async def nothing(_self: Heartbeats) -> None:
        """The test is not about what this process waits for."""

    monkeypatch.setattr(Heartbeats, "_watch_own_waits", nothing)
    monkeypatch.setattr(heartbeats, "EVERY_SECS", 2.0)
    monkeypatch.setattr(heartbeats.asyncio, "sleep", sleeping)
    process = Process([])
    members = [WatchedProcess("the scheduler", ProcessRole.BUILDER, process.beat, process.end, clock=Clock())]
    members += [
        WatchedProcess(f"device {at}", ProcessRole.DEVICE, process.beat, process.end, False, Clock(), True)
        for at in range(1000)
    ]
    watching = asyncio.ensure_future(Heartbeats(members, process.tell, process.restarted, Clock()).watch())
    async with asyncio.timeout(60.0):
        while len(slept) < 3 * len(members):
            await sleep(0)
    watching.cancel()
    first, later = slept[: len(members)], slept[len(members) :]
    assert sorted(first) == pytest.approx([0.0, *(at / 50 for at in range(1000))])
    assert set(later) == {2.0, 20.0}
    assert process.told == []
