"""Who comes while a run goes on, where something is wrong with one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from actors.clients.device import DeviceClient
from actors.clients.handles import ActorHandles
from actors.scheduling.device_admission import DeviceAdmission
from actors.scheduling.supervisor import SchedulerSupervisor
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.domain import DeviceClass, Fingerprint
from fleet_tune.base.power_text import HELD, LOWERED
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

    def __init__(self, error: Exception | None = None, says: Fingerprint | None = None) -> None:
        self._error = error
        self._says = says or make_fingerprint(ORIN, SIMULATED_CPU)

    async def first_answer(self, _report_wait: Callable[[str], None]) -> Fingerprint:
        if self._error is not None:
            raise self._error
        return self._says

    def of_class(self, _target: str, power: str) -> Answering:
        self.told_power = power
        return self


class World:
    def __init__(self, fingerprints: Mapping[str, Fingerprint] | None = None) -> None:
        self.calls = RemoteCalls()
        supervisor = cast(SchedulerSupervisor, cast(Any, self.calls))
        self.admission = DeviceAdmission(supervisor, {}, ActorHandles(), {}, fingerprints=fingerprints)

    def expect(self, name: str, device: Answering) -> None:
        self.admission.wait_for(name, cast(DeviceClient, cast(Any, device)))


@pytest.fixture
async def world() -> World:
    return World()


async def test_whatever_a_device_says_of_itself_is_told(world: World) -> None:
    world.expect("a", Answering(ValueError("many\nlines")))
    world.expect("b", Answering())
    async with asyncio.timeout(10.0):
        name, _ = await world.admission.next_class()
    assert name == "b"
    assert world.calls.told[0] == "device a is not taken: ValueError: lines"


async def test_a_device_in_another_power_mode_than_its_class_is_not_used() -> None:
    maxn, slower = (replace(make_fingerprint(ORIN, SIMULATED_CPU), power=mode) for mode in ("MAXN (0)", "30W (2)"))
    world = World({"first": maxn})
    world.expect("a", Answering(says=slower))
    world.expect("b", Answering(says=maxn))
    async with asyncio.timeout(10.0):
        name, _ = await world.admission.next_class()
    assert name == "b"
    modes = "it is in power mode 30W (2), others of its class orin in MAXN (0)"
    text = f"device a cannot be used: {modes}: set it alike, and begin the run again"
    assert text in world.calls.told


async def test_a_device_is_used_in_the_power_mode_in_which_it_answered(world: World) -> None:
    device = Answering(says=replace(make_fingerprint(ORIN, SIMULATED_CPU), power="MAXN (0)"))
    world.expect("a", device)
    async with asyncio.timeout(10.0):
        await world.admission.next_class()
    await world.admission.admit_class(ORIN)
    assert world.calls.used == ["a"]
    assert device.told_power == "MAXN (0)"


async def test_a_board_that_is_hot_hides_no_other_mode_in_its_class() -> None:
    """Whether the hot board's clock is held cannot be seen: it goes with both, and they not with each other."""
    hot, held, free = (
        replace(make_fingerprint(ORIN, SIMULATED_CPU), power=f"MAXN (0){clock}") for clock in (LOWERED, HELD, "")
    )
    world = World({"first": hot})
    world.expect("a", Answering(says=held))
    async with asyncio.timeout(10.0):
        await world.admission.next_class()
    await world.admission.admit_class(ORIN)
    world.expect("b", Answering(says=hot))
    world.expect("c", Answering(says=free))
    async with asyncio.timeout(10.0):
        while len(world.calls.used) < 2 or len(world.calls.told) < 2:
            await asyncio.sleep(0.0)
    assert world.calls.used == ["a", "b"]
    assert "device c cannot be used: it is in power mode MAXN (0), others of its class orin in" in world.calls.told[-1]


async def test_a_class_whose_devices_were_taken_may_still_be_refused(world: World) -> None:
    world.expect("a", Answering())
    async with asyncio.timeout(10.0):
        await world.admission.next_class()
    await world.admission.admit_class(ORIN)
    assert world.calls.used == ["a"]
    await world.admission.refuse_class("orin", "what comes after is damaged")


async def test_a_device_that_cannot_be_taken_takes_nothing_from_the_others_of_its_class(world: World) -> None:
    world.calls.damaged = "a"
    world.expect("a", Answering())
    world.expect("b", Answering())
    async with asyncio.timeout(10.0):
        await world.admission.next_class()
    await asyncio.sleep(0.0)
    await world.admission.admit_class(ORIN)
    assert world.calls.used == ["b"]
    assert world.calls.told[-1] == "device a is not taken: TypeError: cannot pickle it"
