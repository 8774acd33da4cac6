"""Signs of life: which process of a run is gone or hangs is known within ten seconds, and what hangs is ended.

Every process of a run is asked for a sign of life every few seconds by the one that started them, of many builders and
devices one after the other (:mod:`policies.runs.cluster.beats`). Who ends is started
again by Ray, or by :mod:`actors.scheduling.supervisor`; whoever waits for its answer learns of that by itself
(:class:`actors.clients.calls.ActorLostError`). Here it is told, and a process that is there and does not answer becomes
one that has ended. A process that stands still in a quiet window is asked by that window's clock, which stands still
too."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from actors.clients.calls import ActorDeadError, ActorLostError, told
from policies.runs.cluster.beats import every_secs, first_secs

_LOG = logging.getLogger(__name__)
EVERY_SECS = 2.0
SILENT_SECS = 6.0
"""Who has not answered for this time is silent."""
PATIENCE_SECS = 15.0
LONG_PATIENCE_SECS = 30.0
"""For those who compute in the process that is to answer, beside builders and devices."""
START_SECS = 120.0
"""The longest that a process may take to start."""
_LOOK_SECS = 0.5


@dataclass(frozen=True)
class WatchedProcess:
    """A process. ``beat``: answers when it does, and raises ActorLostError where it is gone. ``end``: ends it, so that
    another one takes its place. ``computes``: it does long work in the process that is to answer. ``clock``: by which
    its silence counts. ``is_one_of_many``: a builder or a device, which is asked less often where there are many."""

    name: str
    beat: Callable[[], Awaitable[None]]
    end: Callable[[], None]
    computes: bool = False
    clock: Callable[[], float] = time.monotonic
    is_one_of_many: bool = False


class Heartbeats:
    """``members``: the processes of a run. ``tell``: is told in words what has happened, and whether it is good.
    ``now``: seconds of the run."""

    def __init__(
        self, members: Sequence[WatchedProcess], tell: Callable[[str, bool], None], now: Callable[[], float]
    ) -> None:
        self._members = {each.name: each for each in members}
        self._group: asyncio.TaskGroup | None = None
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._tell = tell
        self._now = now
        self._silent: dict[str, float] = {}

    @property
    def silent(self) -> dict[str, float]:
        """Who is gone or gives no sign of life, with the second of the run of its last one."""
        return dict(self._silent)

    async def watch(self) -> None:
        """Without an end, whatever goes wrong with one of them."""
        number = 0
        async with asyncio.TaskGroup() as group:
            self._group = group
            for member in self._members.values():
                first = first_secs(number, self._crowd, EVERY_SECS) if member.is_one_of_many else 0.0
                number += member.is_one_of_many
                self._watched[member.name] = group.create_task(self._watch_on(member, first))

    def add(self, member: WatchedProcess) -> None:
        """A process more."""
        self._members[member.name] = member
        if self._group is not None:
            self._watched[member.name] = self._group.create_task(self._watch_on(member, 0.0))

    def remove(self, name: str) -> None:
        """A process less: it is nobody's fault that it ends."""
        self._members.pop(name, None)
        watched = self._watched.pop(name, None)
        if watched is not None:
            watched.cancel()
        self._silent.pop(name, None)

    @property
    def _crowd(self) -> int:
        """How many builders and devices there are."""
        return sum(member.is_one_of_many for member in self._members.values())

    def _every_secs(self, member: WatchedProcess) -> float:
        return every_secs(self._crowd, EVERY_SECS) if member.is_one_of_many else EVERY_SECS

    async def _watch_on(self, member: WatchedProcess, first_secs: float) -> None:
        await asyncio.sleep(first_secs)
        while True:
            try:
                await self._watch(member)
            except Exception as error:
                _LOG.exception("watching %s failed", member.name)
                self._tell(f"watching {member.name} failed and begins anew: {told(error)}", False)
            await asyncio.sleep(self._every_secs(member))

    async def _watch(self, member: WatchedProcess) -> None:
        patience_secs = START_SECS
        heard = self._now()
        dead = False
        while True:
            try:
                await self._heard(member, patience_secs, heard)
            except ActorLostError as error:
                if isinstance(error, ActorDeadError):
                    if not dead:
                        self._tell(f"the process of {member.name} has ended for good: {told(error)}", False)
                    dead = True
                elif member.name not in self._silent:
                    self._tell(f"the process of {member.name} has ended: another takes its place", False)
                self._silent.setdefault(member.name, heard)
                patience_secs = START_SECS
            else:
                if self._silent.pop(member.name, None) is not None:
                    self._tell(f"{member.name} answers again, after {self._now() - heard:.0f} s", True)
                heard, dead = self._now(), False
                patience_secs = LONG_PATIENCE_SECS if member.computes else PATIENCE_SECS
            await asyncio.sleep(self._every_secs(member))

    async def _heard(self, member: WatchedProcess, patience_secs: float, heard: float) -> None:
        """One sign of life. Whoever owes it for too long is ended, and then raises ActorLostError."""
        beat = asyncio.ensure_future(member.beat())
        looked, silent_secs = member.clock(), 0.0
        try:
            while True:
                done, _ = await asyncio.wait([beat], timeout=_LOOK_SECS)
                if done:
                    return beat.result()
                # Where this process itself stood still, nobody else was silent.
                now = member.clock()
                silent_secs, looked = silent_secs + min(now - looked, 2 * _LOOK_SECS), now
                if silent_secs >= SILENT_SECS and member.name not in self._silent and patience_secs < START_SECS:
                    self._silent[member.name] = heard
                    self._tell(f"{member.name} gives no sign of life", False)
                if silent_secs >= patience_secs:
                    self._tell(
                        f"{member.name} gave no sign of life for {silent_secs:.0f} s: its process is ended", False
                    )
                    member.end()
                    silent_secs, patience_secs = 0.0, START_SECS
        finally:
            beat.cancel()
