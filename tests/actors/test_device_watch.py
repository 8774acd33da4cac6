"""Devices that come and go with the fleet file and with machines, of which one may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from actors.device_watch import DeviceWatch
from actors.scheduling.heartbeats import Heartbeats
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.errors import UserError
from policies.runs.events import DeviceAdded, DeviceLeft, Event


class World:
    """Hosts, scheduling and reception in one, in which nothing is started; ``here``: the machines that are there."""

    def __init__(self, *here: str) -> None:
        self.here = list(here)
        self.started: dict[str, str] = {}  # the machine of each device that has a process
        self.done: list[str] = []
        self.told: list[str] = []
        self.expected: list[str] = []
        self.configs = {
            name: DeviceConfig(name=name, connect=f"{name}:9090", via=via)
            for name, via in {"a": None, "b": "board", "c": "other"}.items()
        }
        self.refused: set[str] = set()
        self.answers = asyncio.Event()  # of machine "other"
        self.heartbeats = Heartbeats([], self.notice, lambda _event: None, lambda: 0.0)
        this: Any = self
        self.watch = DeviceWatch(this, this, self.heartbeats, this, self.client)

    def client(self, _name: str) -> Any:
        return SimpleNamespace(beat=None, restart=None)

    async def check_device_versions(self, names: Sequence[str]) -> None:
        [name] = names
        if self.configs[name].via == "other":
            await self.answers.wait()
        if name in self.refused:
            raise UserError("it has another TVM", "install the same")

    # As of the hosts.

    async def nodes(self) -> Sequence[str]:
        return self.here

    def start_device_process(self, name: str, nodes: Sequence[str]) -> str:
        via = self.configs[name].via
        if via is not None and via not in nodes:
            return f"host {via} is not there"
        self.started[name] = via or "head"
        return ""

    def end_device(self, name: str) -> None:
        self.started.pop(name, None)

    def devices_without_node(self, nodes: Sequence[str]) -> list[str]:
        return [name for name, via in self.started.items() if via not in ("head", *nodes)]

    # As of the scheduling.

    async def tell(self, event: Event) -> bool:
        match event:
            case DeviceAdded(name):
                self.done.append(f"+{name}")
            case DeviceLeft(name, reason):
                self.done.append(f"-{name}: {reason}")
        return True

    def notice(self, text: str, _well: bool) -> None:
        self.told.append(text)

    # As of the admission.

    def remove(self, name: str) -> None:
        self.done.append(name)

    def wait_for(self, name: str, _client: Any) -> None:
        self.expected.append(name)

    async def stop_waiting(self, name: str) -> None:
        self.expected = [each for each in self.expected if each != name]

    async def follow(self, *here: str) -> None:
        self.here = list(here)
        await self.watch.follow(self.here)  # type: ignore[arg-type]
        await asyncio.sleep(0)


async def test_a_device_waits_for_its_machine_and_goes_with_it() -> None:
    world = World()
    await world.watch.start_device("a")
    await world.watch.start_device("b")
    assert (world.expected, world.watch.without_node) == (["a"], {"b"})
    assert world.told == [
        "device a is part of the fleet now: it joins when it answers",
        "device b is waited for: host board is not there",
    ]
    await world.follow("board")
    assert (world.expected, world.watch.without_node) == (["a", "b"], frozenset())
    assert list(world.heartbeats._processes) == ["device a", "device b"]

    await world.follow()
    assert world.done == ["+a", "+b", "-b: its host board has left the cluster", "b", "+b"]
    assert (world.expected, world.watch.without_node, list(world.started)) == (["a"], {"b"}, ["a"])
    assert world.told[2:] == ["device b is waited for: its host may come back"]
    assert list(world.heartbeats._processes) == ["device a"]
    await world.follow("board")
    assert world.expected == ["a", "b"]
    world.watch.close()


async def test_a_machine_that_hangs_keeps_no_device_from_joining() -> None:
    world = World()
    for name in ("b", "c"):
        await world.watch.start_device(name)
    await world.follow("board", "other")
    assert world.expected == ["b"]
    # It is gone from the fleet before its machine has answered: what that says then is not heard.
    await world.watch.remove("c", "it is no longer in the fleet file")
    world.answers.set()
    await asyncio.sleep(0)
    assert world.expected == ["b"]
    assert (list(world.started), world.watch.without_node) == (["b"], frozenset())
    world.watch.close()


async def test_a_device_with_another_version_is_none_of_the_run() -> None:
    world = World()
    world.refused = {"a", "b"}
    with pytest.raises(UserError, match="it has another TVM"):
        await world.watch.start_device("a")
    assert (world.done, world.started) == ([], {})
    await world.watch.start_device("b")
    await world.follow("board")
    assert world.done == ["+b", "-b: it has another TVM; install the same", "b"]
    assert (world.expected, world.started, world.watch.without_node) == ([], {}, frozenset())
