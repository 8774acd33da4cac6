"""Builders that come and go with machines, of which one may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from actors.builder_watch import BuilderWatch
from actors.clients.handles import ActorHandles
from actors.scheduling.heartbeats import Heartbeats
from fleet_tune.base.errors import UserError
from policies.runs.cluster.placement import ClusterNode
from policies.runs.events import BuildersAdded, BuildersLeft, Event


def node(name: str) -> ClusterNode:
    return ClusterNode(
        node_id=name, name=name, address=name, hosts=frozenset(), cpus=1.0, free_cpus=1.0, free_bytes=1e9
    )


class Actor:
    """Of a machine's builders: nothing happens."""

    @property
    def warm_up(self) -> Actor:
        return self

    def remote(self, *_: object) -> None: ...


class Hosts:
    """Two builders on each machine, which share an actor."""

    def __init__(self) -> None:
        self.builders: dict[int, Any] = {}
        self.nodes: dict[str, list[int]] = {}
        self.left_out: list[str] = []
        self._next = 0
        self.answers = asyncio.Event()  # of the first machine

    async def check_builder_versions(self, builders: Mapping[int, Any]) -> None:
        if 0 in builders:
            await self.answers.wait()
        if 4 in builders:
            raise UserError("it has another TVM", "install the same")

    def remove_lost_builders(self, nodes: Sequence[ClusterNode]) -> dict[int, Any]:
        there = {each.node_id for each in nodes}
        gone = [number for name in self.nodes if name not in there for number in self.nodes[name]]
        self.nodes = {name: numbers for name, numbers in self.nodes.items() if name in there}
        return {number: self.builders.pop(number) for number in gone}

    def start_more_builders(self, nodes: Sequence[ClusterNode]) -> Iterator[tuple[ClusterNode, dict[int, Any]]]:
        for each in nodes:
            if each.node_id not in self.nodes:
                actor, numbers = Actor(), [self._next, self._next + 1]
                self._next += 2
                self.nodes[each.node_id] = numbers
                started: dict[int, Any] = dict.fromkeys(numbers, actor)
                self.builders |= started
                yield each, started

    def exclude_builders(self, node: ClusterNode, _builders: Iterable[int]) -> None:
        self.left_out.append(node.node_id)


class SchedulerSupervisor:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.done: list[Event] = []

    async def tell(self, event: Event) -> bool:
        self.done.append(event)
        return True

    def notice(self, text: str, _well: bool) -> None:
        self.told.append(text)


async def test_a_machine_that_hangs_keeps_no_other_from_building() -> None:
    hosts, supervisor, handles = Hosts(), SchedulerSupervisor(), ActorHandles()
    beats = Heartbeats([], supervisor.notice, lambda _event: None, lambda: 0.0)

    watch = BuilderWatch(cast(Any, hosts), cast(Any, supervisor), beats, handles)
    await watch.follow([node("hangs"), node("well"), node("old")])
    await asyncio.sleep(0)
    assert supervisor.done == [BuildersAdded((2, 3))]
    assert supervisor.told[0].endswith("builds now (builders: 2)")
    assert "does not build: it has another TVM" in supervisor.told[1]
    assert hosts.left_out == ["old"]
    assert list(handles.builders) == [2, 3]
    assert list(beats._processes) == ["builders 2 to 3"]

    # It is gone before it has answered: what it says then is not heard.
    await watch.follow([node("well"), node("old")])
    hosts.answers.set()
    await asyncio.sleep(0.01)
    assert supervisor.done == [BuildersAdded((2, 3)), BuildersLeft((0, 1))]
    assert list(beats._processes) == ["builders 2 to 3"]
    await watch.follow([node("old")])
    assert supervisor.done[-1] == BuildersLeft((2, 3))
    assert list(beats._processes) == []
    watch.close()
