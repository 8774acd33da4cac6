"""The client of the builders of a machine."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Mapping
from typing import Any

from actors.clients.base import RestartedClient
from actors.clients.calls import WINDOW_WAIT_SECS, ActorTimeoutError, ask
from devices.protocol import BuildRequest
from fleet_tune.base.domain import Measurement

_THERE_SECS = 5.0
_GATHER_SECS = 0.002  # what is asked for within this time goes in one call
_WAIT_SECS = 10.0

BuildAnswer = bytes | Measurement | Exception
"""The artifact as :func:`actors.clients.artifacts.packed` makes it, the failure, or the error that the worker
raised."""


class BuilderMachineClient(RestartedClient):
    """See :class:`actors.processes.builder.Builders`.

    Requests of a moment go there in one call, and answers of a moment come back in one: one call is always there that
    waits for the next answer, and takes new requests along.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__(actor)
        self._caller = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[BuildAnswer]] = {}
        self._unsent: dict[int, tuple[int, BuildRequest]] = {}
        """By number: the place of the builder on its machine, from 0 on, and the request."""
        self._received: list[int] = []
        """Numbers of the answers that the process may forget."""
        self._calls = 0
        self._about_to_ask = False
        self._asking: set[asyncio.Task[None]] = set()

    def __reduce__(self) -> tuple[type[BuilderMachineClient], tuple[Any]]:
        return BuilderMachineClient, (self._actor,)

    def warm_up(self, count: int) -> None:
        """Start the worker processes of the first so many; not waited for."""
        self._actor.warm_up.remote(count)

    async def is_there(self) -> None:
        """Raises ActorLostError, ActorTimeoutError where no process has taken the place of a lost one yet."""
        await ask(self._actor.beat.remote(), _THERE_SECS, "a sign of life")

    async def build(self, place: int, request: BuildRequest) -> bytes | Measurement:
        """See :meth:`BuilderClient.build`."""
        number = next(self._numbers)
        answered: asyncio.Future[BuildAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        self._unsent[number] = (place, request)
        if not self._about_to_ask:
            self._about_to_ask = True
            asking = asyncio.create_task(self._ask())
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        deadline_secs = request.timeout_secs + WINDOW_WAIT_SECS
        try:
            async with asyncio.timeout(deadline_secs):
                answer = await answered
        except TimeoutError:
            raise ActorTimeoutError(f"build: no answer within {deadline_secs:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _ask(self) -> None:
        """Until another call waits, or there is nothing to wait for. A process that hangs is ended by those who watch
        over it."""
        while True:
            await asyncio.sleep(_GATHER_SECS)
            self._about_to_ask = False
            self._calls += 1
            call = self._calls
            requests, received = self._unsent, self._received
            self._unsent, self._received = {}, []
            try:
                answers: dict[int, BuildAnswer] = await ask(
                    self._actor.exchange.remote(self._caller, requests, received, _WAIT_SECS), None, "build"
                )
            except Exception as error:
                self._fail(error)
                return
            for number, answer in answers.items():
                self._received.append(number)
                waiting = self._waiting.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
            if call != self._calls or self._about_to_ask or not self._waiting:
                return
            self._about_to_ask = True

    def _fail(self, error: Exception) -> None:
        """Whatever was sent is lost."""
        for number in self._waiting.keys() - self._unsent.keys():
            waiting = self._waiting.pop(number)
            if not waiting.done():
                waiting.set_exception(error)


class BuilderClient:
    """One of the builders of a machine."""

    def __init__(self, machine: BuilderMachineClient, place: int) -> None:
        self._machine = machine
        self._place = place

    async def is_there(self) -> None:
        """See :meth:`BuilderMachineClient.is_there`."""
        await self._machine.is_there()

    async def build(self, request: BuildRequest) -> bytes | Measurement:
        """The artifact as :func:`actors.clients.artifacts.packed` makes it, or the failure. Raises what the worker
        raises."""
        return await self._machine.build(self._place, request)


def builder_clients(builders: Mapping[int, Any]) -> dict[int, BuilderClient]:
    """Clients of builders, which are given by their numbers with the actor of their machine."""
    machines: dict[Any, BuilderMachineClient] = {}
    places: dict[Any, itertools.count[int]] = {}
    clients = {}
    for number, actor in sorted(builders.items()):
        machine = machines.setdefault(actor, BuilderMachineClient(actor))
        clients[number] = BuilderClient(machine, next(places.setdefault(actor, itertools.count())))
    return clients
