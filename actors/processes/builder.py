"""The builders of a machine: each compiles one candidate at a time in its own warm worker process. One actor owns all
of them. It takes requests and hands out answers in groups."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from actors.clients.artifacts import packed
from actors.clients.builder import BuildAnswer
from actors.clients.calls import remote_actor
from actors.heartbeat import Heartbeat, heartbeat
from devices.host.versions import HostVersions, this_host_versions
from devices.protocol import Artifact, BuildRequest, BuildResult
from fleet_tune.base.errors import FleetTuneError

# Builds that end within this time share an answer. It is a share of the mean time of a build, so that no builder waits
# for long. There is no wait if so few builders work that no other build would end within it.
_GATHER_SHARE = 0.05
_MOST_GATHER_SECS = 0.05
_MEMORY = 0.1  # weight of the last build in the mean of build times


class Worker(Protocol):
    """A worker that builds: :class:`devices.builds.builder.BuildWorker`, or a simulation."""

    def start(self) -> None: ...

    def build(self, request: BuildRequest) -> BuildResult: ...

    def close(self) -> None: ...


class ReplacedError(FleetTuneError):
    """A later caller has taken over these builders."""


class Builders:
    """Async actor: ``count`` builders, each with a worker that ``make_worker`` returns, in a thread of its own.

    Only the latest caller (a :class:`actors.clients.builder.BuilderMachineClient`) is served. Requests of an earlier
    caller that have not begun are dropped, and its answers are discarded."""

    def __init__(self, make_worker: Callable[[], Worker], count: int) -> None:
        self._make_worker = make_worker
        self._made: dict[int, Worker] = {}
        self._threads = [ThreadPoolExecutor(1) for _ in range(count)]
        self._caller = ""
        self._former: set[str] = set()
        self._building: dict[int, asyncio.Task[None]] = {}
        self._answers: dict[int, BuildAnswer] = {}
        self._changed = asyncio.Condition()
        self._calls = 0
        self._mean_secs = 0.0

    async def exchange(
        self, caller: str, requests: Mapping[int, tuple[int, BuildRequest]], received: Sequence[int], wait_secs: float
    ) -> dict[int, BuildAnswer]:
        """Begin ``requests``. Return the answers by number once there is one, at the latest after ``wait_secs``.

        When the next call comes, this one ends at once and returns nothing. Raises ReplacedError.

        Args:
            caller: id of the caller.
            requests: requests by number, each with the place of its builder, from 0 on.
            received: numbers of the answers that the caller has received.
            wait_secs: longest wait for an answer.
        """
        if caller in self._former:
            raise ReplacedError("another scheduler has these builders")
        if caller != self._caller:
            self._forget()
            self._former.add(self._caller)
            self._caller = caller
        for number in received:
            self._answers.pop(number, None)
        for number, (place, request) in requests.items():
            self._building[number] = asyncio.create_task(self._answer(number, place, request))
        self._calls += 1
        call = self._calls
        async with self._changed:
            self._changed.notify_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: bool(self._answers) or call != self._calls), wait_secs
                )
        if self._answers and call == self._calls and len(self._building) * _GATHER_SHARE >= 1:
            await asyncio.sleep(min(_MOST_GATHER_SECS, _GATHER_SHARE * self._mean_secs))
        return dict(self._answers) if call == self._calls else {}

    async def host(self) -> HostVersions:
        """Return the machine that this process runs on, with its versions of TVM."""
        return this_host_versions()

    async def beat(self) -> Heartbeat:
        """Return a sign of life, also while all builders build."""
        return heartbeat()

    async def warm_up(self, count: int) -> None:
        """Start the worker processes of the first ``count`` builders, so that no first build waits for a process."""
        for place, thread in enumerate(self._threads[:count]):
            thread.submit(self._start, place)

    async def close(self) -> None:
        for worker in self._made.values():
            await asyncio.to_thread(worker.close)

    def _forget(self) -> None:
        for building in self._building.values():
            building.cancel()  # a worker finishes a build that it has begun
        self._building.clear()
        self._answers.clear()

    async def _answer(self, number: int, place: int, request: BuildRequest) -> None:
        loop, caller = asyncio.get_running_loop(), self._caller
        began = loop.time()
        answer: BuildAnswer
        try:
            result = await self._build(place, request)
        except FleetTuneError as error:
            answer = error
        except Exception as error:  # other processes may not know its class
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        else:
            self._mean_secs += _MEMORY * (loop.time() - began - self._mean_secs)
            answer = packed(result) if isinstance(result, Artifact) else result
        if caller != self._caller:
            return
        self._building.pop(number, None)
        async with self._changed:
            self._answers[number] = answer
            self._changed.notify_all()

    async def _build(self, place: int, request: BuildRequest) -> BuildResult:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads[place], lambda: self._worker(place).build(request)
        )

    def _start(self, place: int) -> None:
        with contextlib.suppress(Exception):  # the first build reports the error
            self._worker(place).start()

    def _worker(self, place: int) -> Worker:
        """Return the worker of a place. It is made at its first use, so that an error of making it is an answer and
        does not end the actor. To be called only in the thread of that place."""
        if place not in self._made:
            self._made[place] = self._make_worker()
        return self._made[place]


def builders_actor(**options: Any) -> Any:
    """The Ray class of :class:`Builders`: Ray starts it again when its process ends."""
    return remote_actor(Builders, restarts=-1, concurrency=64, **options)
