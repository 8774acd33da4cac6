"""Jobs and what is done, to and fro between a scheduler and the builders of a machine, without Ray between them."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from actors.clients.artifacts import Artifacts, unpacked
from actors.clients.builder import BuilderClient, builder_clients
from actors.clients.calls import ActorLostError
from actors.processes.builder import Builders, ReplacedError
from devices.protocol import Artifact, BuildRequest, BuildResult
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Task
from fleet_tune.base.errors import UserError
from tests.helpers.tasks import make_task

TASK = make_task("matmul")


def candidate(number: int, task: Task = TASK) -> Candidate:
    return Candidate(task.id, 0, "sketch", (number,))


def request(number: int, task: Task = TASK) -> BuildRequest:
    return BuildRequest(task, candidate(number, task), 10.0)


class Worker:
    """Builds candidates; number 13 fails, 14 raises what a user can mend, 15 what nobody knows, and every one waits for
    ``go``."""

    def __init__(self, go: threading.Event, begun: list[int]) -> None:
        self._go = go
        self._begun = begun

    def start(self) -> None:
        self._begun.append(-1)

    def build(self, request: BuildRequest) -> BuildResult:
        assert request.candidate is not None
        [number] = request.candidate.decisions
        self._begun.append(number)
        assert self._go.wait(30)
        if number == 13:
            return Measurement(Outcome.BUILD_ERROR)
        if number == 14:
            raise UserError("no linker", "install one")
        if number == 15:
            raise KeyError("status")
        return Artifact(request.task.id, request.candidate, b"code", (), (), (), (), "", 0.5)

    def close(self) -> None: ...


class Machine:
    """The actor of a machine's builders, in this process. ``calls``: the numbers of the requests of each call."""

    def __init__(self, count: int) -> None:
        self.go = threading.Event()
        self.begun: list[int] = []
        self.calls: list[list[int]] = []
        self._count = count
        self._asked: set[asyncio.Future[Any]] = set()
        self.begin_anew()

    def begin_anew(self) -> None:
        """The process ends, with all that it was asked for, and another takes its place."""
        self.builders = Builders(lambda: Worker(self.go, self.begun), self._count)
        for each in self._asked:
            if not each.done():
                each.set_exception(ActorLostError("its process ended"))

    @property
    def exchange(self) -> Machine:
        return self

    def remote(self, caller: str, requests: Any, received: Any, wait_secs: float) -> Awaitable[Any]:
        self.calls.append(list(requests))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.add(answer)

        async def work() -> None:
            try:
                found = await builders.exchange(caller, requests, received, wait_secs)
            except ReplacedError as error:
                answer.set_exception(error)
                return
            if not answer.done():
                answer.set_result(pickle.loads(pickle.dumps(found)))

        builders = self.builders
        self._working = asyncio.ensure_future(work())
        return answer

    def clients(self) -> dict[int, BuilderClient]:
        return builder_clients(dict.fromkeys(range(self._count), self))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_jobs_of_a_moment_go_in_one_call_and_each_has_its_own_end() -> None:
    machine = Machine(4)
    machine.go.set()
    builders = machine.clients()
    numbers = (1, 13, 14, 15)
    ends = await asyncio.gather(
        *(builders[place].build(request(number)) for place, number in enumerate(numbers)), return_exceptions=True
    )
    built, failed, mended, unknown = cast(Any, ends)
    assert unpacked(built).candidate == candidate(1)
    assert failed == Measurement(Outcome.BUILD_ERROR)
    assert isinstance(mended, UserError)
    assert isinstance(unknown, RuntimeError)
    assert "KeyError: 'status'" in str(unknown)
    assert machine.calls[0] == [1, 2, 3, 4]


async def test_whoever_waits_learns_of_a_lost_process_and_the_next_one_builds() -> None:
    machine = Machine(2)
    builders = machine.clients()
    waiting = [asyncio.ensure_future(builders[place].build(request(place))) for place in (0, 1)]
    await until(lambda: len(machine.begun) == 2)
    machine.begin_anew()
    for each in waiting:
        with pytest.raises(ActorLostError):
            await each
    machine.go.set()
    assert unpacked(await builders[0].build(request(5))).library == b"code"


async def test_a_process_that_began_anew_between_two_builds_builds() -> None:
    machine = Machine(1)
    machine.go.set()
    [builder] = machine.clients().values()
    await builder.build(request(1))
    machine.begin_anew()
    assert unpacked(await builder.build(request(2))).candidate == candidate(2)


async def test_what_another_caller_wanted_is_not_begun() -> None:
    machine = Machine(1)
    first, second = machine.clients()[0], machine.clients()[0]
    waiting = [asyncio.ensure_future(first.build(request(number))) for number in (1, 2)]
    await until(lambda: machine.begun == [1])
    wanted = asyncio.ensure_future(second.build(request(3)))
    await until(lambda: len(machine.calls) > 1)
    await asyncio.sleep(0)
    machine.go.set()
    assert unpacked(await wanted).candidate == candidate(3)
    assert machine.begun == [1, 3]
    for each in waiting:
        with pytest.raises(ReplacedError):
            await each


def test_a_large_artifact_is_put_where_others_fetch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[bytes] = []
    monkeypatch.setattr("actors.clients.artifacts._stored", lambda artifact: stored.append(artifact) or len(stored))
    artifacts = Artifacts()
    artifacts.put("small", b"s")
    artifacts.put("large", bytes(1 << 20))
    assert artifacts["small"] == b"s"
    assert artifacts["large"] == 1
    assert stored == [bytes(1 << 20)]
    assert artifacts.reference("small") == artifacts.reference("small") == 2
    assert artifacts.reference("large") == 1
    artifacts.forget(["small", "nowhere"])
    assert artifacts.reference("small") is None


async def test_no_more_workers_start_than_are_wanted() -> None:
    made: list[int] = []
    builders = Builders(lambda: Worker(threading.Event(), made), 3)
    await builders.warm_up(2)
    for thread in builders._threads:
        await asyncio.to_thread(thread.shutdown)
    assert made == [-1, -1]
