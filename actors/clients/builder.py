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
_GATHER_SECS = 0.002  # requests that come within this time go in one call
_WAIT_SECS = 10.0

BuildAnswer = bytes | Measurement | Exception
"""The artifact, packed by :func:`actors.clients.artifacts.packed`; the failure; or the error that the worker raised."""


class BuilderMachineClient(RestartedClient):
    """See :class:`actors.processes.builder.Builders`.

    Requests of the same moment share a call, and so do answers. While an answer is due, one call waits for it at the
    actor. New requests go there in a new call, which ends the waiting one and waits instead.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__(actor)
        self._caller = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[BuildAnswer]] = {}
        self._unsent: dict[int, tuple[int, BuildRequest]] = {}
        """By request number: the place of the builder on its machine, from 0 on, and the request."""
        self._received: list[int] = []
        """Numbers of the answers that the process may forget."""
        self._calls = 0
        self._about_to_ask = False
        self._asking: set[asyncio.Task[None]] = set()

    def __reduce__(self) -> tuple[type[BuilderMachineClient], tuple[Any]]:
        return BuilderMachineClient, (self._actor,)

    def warm_up(self, count: int) -> None:
        """Start the worker processes of the first ``count`` builders, without waiting for them."""
        self._actor.warm_up.remote(count)

    async def is_there(self) -> None:
        """Check that the process answers. Raise ActorLostError or ActorTimeoutError while no process has replaced a
        lost one."""
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
        """Exchange requests and answers until another call does so, or no answer is due. The calls need no deadline:
        the heartbeats end a process that hangs."""
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
        """Fail every request that was sent: its answer is lost."""
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
        """Return the artifact, packed by :func:`actors.clients.artifacts.packed`, or the failure. Raise what the worker
        raises."""
        return await self._machine.build(self._place, request)


def builder_clients(builders: Mapping[int, Any]) -> dict[int, BuilderClient]:
    """Return a client for each builder, by number. ``builders``: the actor of each builder's machine, by the builder's
    number."""
    machines: dict[Any, BuilderMachineClient] = {}
    places: dict[Any, itertools.count[int]] = {}
    clients = {}
    for number, actor in sorted(builders.items()):
        machine = machines.setdefault(actor, BuilderMachineClient(actor))
        clients[number] = BuilderClient(machine, next(places.setdefault(actor, itertools.count())))
    return clients
