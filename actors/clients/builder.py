"""The client of the builders of a machine."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actors.clients.base import RestartedClient
from actors.clients.calls import WINDOW_WAIT_SECS, ActorLostError, ActorTimeoutError, ask
from devices.protocol import BuildFailure, BuildRequest
from fleet_tune.base.domain import Candidate, Task

_THERE_SECS = 5.0
_GATHER_SECS = 0.002  # what is asked for within this time goes in one call
_WAIT_SECS = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """A build request on its way to a builder's process, which knows the task already."""

    number: int
    """Number among the jobs of its caller."""
    place: int
    """Number of the builder on its machine, from 0 on."""
    task_id: str
    candidate: Candidate | None
    """None for the task's oracle."""
    timeout_secs: float


@dataclass(frozen=True, slots=True)
class BuildDone:
    """The result of a job."""

    number: int
    """Number of the job."""
    failure: BuildFailure | None = None
    artifact: bytes = b""
    """Artifact, as :func:`actors.clients.artifacts.packed` makes it."""
    error: Exception | None = None
    """Error that the builder raised."""
    lost: bool = False
    """True where the process does not know the task, for it has begun anew."""


class BuildersClient(RestartedClient):
    """See :class:`actors.processes.builder.Builders`. Jobs of a moment go there in one call, and what is done of a
    moment comes back in one answer."""

    def __init__(self, actor: Any) -> None:
        super().__init__(actor)
        self._exchange: _Exchange | None = None

    def __reduce__(self) -> tuple[type[BuildersClient], tuple[Any]]:
        return BuildersClient, (self._actor,)

    def warm_up(self, count: int) -> None:
        """Start the worker processes of the first so many; not waited for."""
        self._actor.warm_up.remote(count)

    async def is_there(self) -> None:
        """Raises ActorLostError, ActorTimeoutError where no process has taken the place of a lost one yet."""
        await ask(self._actor.beat.remote(), _THERE_SECS, "a sign of life")

    async def build(self, place: int, request: BuildRequest) -> tuple[BuildFailure | None, bytes]:
        """The failure, or None and the packed artifact; see :class:`BuilderClient`."""
        if self._exchange is None:
            self._exchange = _Exchange(self._actor)
        return await self._exchange.build(place, request)


class BuilderClient:
    """One of the builders of a machine."""

    def __init__(self, machine: BuildersClient, place: int) -> None:
        self._machine = machine
        self._place = place

    async def is_there(self) -> None:
        """See :meth:`BuildersClient.is_there`."""
        await self._machine.is_there()

    async def build(self, request: BuildRequest) -> tuple[BuildFailure | None, bytes]:
        """The failure, or None and the artifact as :func:`actors.clients.artifacts.packed` makes it. Raises what the
        worker raises."""
        return await self._machine.build(self._place, request)


def builder_clients(builders: Mapping[int, Any]) -> dict[int, BuilderClient]:
    """Clients of builders, which are given by their numbers with the actor of their machine."""
    machines: dict[Any, BuildersClient] = {}
    places: dict[Any, itertools.count[int]] = {}
    clients = {}
    for number, actor in sorted(builders.items()):
        machine = machines.setdefault(actor, BuildersClient(actor))
        clients[number] = BuilderClient(machine, next(places.setdefault(actor, itertools.count())))
    return clients


class _Exchange:
    """The calls between this process and the builders of a machine: one is always there that waits for the next result,
    and takes new jobs along."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._caller = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[BuildDone]] = {}
        self._new: list[Job] = []
        self._lacking: dict[str, Task] = {}  # tasks that the machine has not been told of, of new jobs
        self._told: set[str] = set()
        self._seen: list[int] = []
        self._calls = 0
        self._about_to_ask = False
        self._asking: set[asyncio.Task[None]] = set()

    async def build(self, place: int, request: BuildRequest) -> tuple[BuildFailure | None, bytes]:
        number = next(self._numbers)
        done: asyncio.Future[BuildDone] = asyncio.get_running_loop().create_future()
        self._waiting[number] = done
        self._new.append(Job(number, place, request.task.id, request.candidate, request.timeout_secs))
        if request.task.id not in self._told:
            self._lacking[request.task.id] = request.task
        if not self._about_to_ask:
            self._about_to_ask = True
            asking = asyncio.create_task(self._ask())
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        deadline_secs = request.timeout_secs + WINDOW_WAIT_SECS
        try:
            async with asyncio.timeout(deadline_secs):
                end = await done
        except TimeoutError:
            raise ActorTimeoutError(f"build: no answer within {deadline_secs:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if end.lost:
            self._told.clear()
            raise ActorLostError("build: its process ended")
        if end.error is not None:
            raise end.error
        return end.failure, end.artifact

    async def _ask(self) -> None:
        """Until another call waits, or there is nothing to wait for. A process that hangs is ended by those who watch
        over it."""
        while True:
            await asyncio.sleep(_GATHER_SECS)
            self._about_to_ask = False
            self._calls += 1
            call = self._calls
            jobs, tasks, seen = self._new, list(self._lacking.values()), self._seen
            self._new, self._lacking, self._seen = [], {}, []
            self._told.update(task.id for task in tasks)
            try:
                done: list[BuildDone] = await ask(
                    self._actor.exchange.remote(self._caller, jobs, tasks, seen, _WAIT_SECS), None, "build"
                )
            except Exception as error:
                self._fail(error)
                return
            for each in done:
                self._seen.append(each.number)
                waiting = self._waiting.pop(each.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(each)
            if call != self._calls or self._about_to_ask or not self._waiting:
                return
            self._about_to_ask = True

    def _fail(self, error: Exception) -> None:
        """Whatever was sent is lost, and nobody knows what the next process is told of."""
        self._told.clear()
        unsent = {job.number for job in self._new}
        for number in [number for number in self._waiting if number not in unsent]:
            waiting = self._waiting.pop(number)
            if not waiting.done():
                waiting.set_exception(error)
