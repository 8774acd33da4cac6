"""The handles of the actors that a run's scheduler calls, by the names that the run's state uses for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from actors.clients.builder import BuilderClient
from actors.clients.device import DeviceHandle
from actors.clients.searcher import SearcherClient
from policies.runs.events import BuildersAdded, ClassAdded, DeviceAnswered, Event

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass
class ActorHandles:
    """A registry of handles. The driver has one. It enters each actor there before it tells the scheduler of the actor.
    The scheduler has a copy. Events name actors by plain values, so each event that adds actors brings their handles
    for the copy."""

    searchers: dict[str, SearcherClient] = field(default_factory=dict)
    """The searcher of each task, by the task's id."""
    builders: dict[int, BuilderClient] = field(default_factory=dict)
    """Builders by number."""
    devices: dict[str, DeviceHandle] = field(default_factory=dict)
    """Devices by id."""

    def of(self, event: Event) -> ActorHandles:
        """Return the handles of the actors that an event names and that the scheduler may not have yet."""
        match event:
            case ClassAdded(_, tasks):
                return ActorHandles(searchers=_part(self.searchers, [each.task.id for each in tasks]))
            case BuildersAdded(builders):
                return ActorHandles(builders=_part(self.builders, builders))
            case DeviceAnswered(device_id):
                return ActorHandles(devices=_part(self.devices, [device_id]))
        return ActorHandles()

    def add(self, others: ActorHandles) -> None:
        """Enter other handles."""
        self.searchers |= others.searchers
        self.builders |= others.builders
        self.devices |= others.devices


def _part(handles: Mapping[_K, _V], names: Iterable[_K]) -> dict[_K, _V]:
    return {name: handles[name] for name in names}
