"""Who comes while a run goes on, where something is wrong with one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from actors.clients.device import DeviceClient
from actors.clients.handles import ActorHandles
from actors.scheduling.admission import DeviceAdmission
from actors.scheduling.supervisor import SchedulerSupervisor
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.domain import DeviceClass, Fingerprint
from policies.runs.events import DeviceAnswered, Event
from tests.helpers.devices import make_fingerprint

ORIN = DeviceClass("orin", "{}")


class RemoteCalls:
    """Stands in for the scheduling of a run. ``damaged``: the device that it cannot take."""

    damaged = ""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.used: list[str] = []

    def notice(self, text: str, _well: bool) -> None:
        self.told.append(text)

    async def tell(self, event: Event) -> bool:
        if isinstance(event, DeviceAnswered):
            if event.device_id == self.damaged:
                raise TypeError("cannot pickle it")
            self.used.append(event.device_id)
        return True


class Answering:
    """Stands in for a device that says what it is, if there is nothing wrong with it."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def joined(self, _tell: Callable[[str], None]) -> Fingerprint:
        if self._error is not None:
            raise self._error
        return make_fingerprint(ORIN, SIMULATED_CPU)

    def of_class(self, _target: str) -> Answering:
        return self


class Met:
    def __init__(self) -> None:
        self.calls = RemoteCalls()
        self.reception = DeviceAdmission(cast(SchedulerSupervisor, cast(Any, self.calls)), {}, ActorHandles(), {})

    def expect(self, name: str, device: Answering) -> None:
        self.reception.expect(name, cast(DeviceClient, cast(Any, device)))


@pytest.fixture
async def met() -> Met:
    return Met()


async def test_whatever_a_device_says_of_itself_is_told(met: Met) -> None:
    met.expect("a", Answering(ValueError("many\nlines")))
    met.expect("b", Answering())
    async with asyncio.timeout(10.0):
        name, _ = await met.reception.arrival()
    assert name == "b"
    assert met.calls.told[0] == "device a is not taken: ValueError: lines"


async def test_a_class_whose_devices_were_taken_may_still_be_refused(met: Met) -> None:
    met.expect("a", Answering())
    async with asyncio.timeout(10.0):
        await met.reception.arrival()
    await met.reception.admit(ORIN)
    assert met.calls.used == ["a"]
    await met.reception.refuse("orin", "what comes after is damaged")


async def test_a_device_that_cannot_be_taken_takes_nothing_from_the_others_of_its_class(met: Met) -> None:
    met.calls.damaged = "a"
    met.expect("a", Answering())
    met.expect("b", Answering())
    async with asyncio.timeout(10.0):
        await met.reception.arrival()
    await asyncio.sleep(0.0)
    await met.reception.admit(ORIN)
    assert met.calls.used == ["b"]
    assert met.calls.told[-1] == "device a is not taken: TypeError: cannot pickle it"
