"""Heartbeats: a process of a run that has ended or hangs is noticed within ten seconds, and one that hangs is ended.

The driver asks every process of a run for a heartbeat every few seconds. Many builders and devices are asked one after
the other (:mod:`policies.runs.cluster.heartbeat_schedule`). Ray, or :mod:`actors.scheduling.supervisor`, restarts a
process that has ended, and the caller that waits for its answer learns of the loss by itself
(:class:`actors.clients.calls.ActorLostError`). The heartbeats report it to people, and end a process that does not
answer. Each answer gives the number of restarts of the process, so that a restart between two heartbeats is not missed.
If a quiet window may stop a process, its silence is counted by the window's clock, which stops too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from actors.clients.calls import ActorDeadError, ActorLostError, error_line
from actors.heartbeat import Heartbeat, heartbeat
from fleet_tune.base.results import ProcessRole
from fleet_tune.base.waits import ProcessWait
from policies.runs.cluster.heartbeat_schedule import first_heartbeat_secs, interval_secs
from policies.runs.events import ProcessRestarted

_LOG = logging.getLogger(__name__)
EVERY_SECS = 2.0
SILENT_SECS = 6.0
"""Time without an answer after which a process is reported as silent."""
PATIENCE_SECS = 15.0
"""Time without an answer after which a process is ended."""
LONG_PATIENCE_SECS = 30.0
"""The same for a process that computes in the thread that answers heartbeats, on a host with builders and devices."""
START_SECS = 120.0
"""Longest start of a process."""
_LOOK_SECS = 0.5
_THIS_PROCESS = "this command"


@dataclass(frozen=True)
class WatchedProcess:
    """A process of a run."""

    name: str
    """Name for people."""
    role: ProcessRole
    beat: Callable[[], Awaitable[Heartbeat]]
    """Returns when the process answers; raises ActorLostError if it has ended."""
    end: Callable[[], None]
    """Ends the process, so that another one replaces it."""
    computes: bool = False
    """True for a process that does long work in the thread that answers heartbeats."""
    clock: Callable[[], float] = time.monotonic
    """Counts the seconds of its silence."""
    is_one_of_many: bool = False
    """True for a builder or a device: many of them are asked less often."""


class Heartbeats:
    """Watches the processes of a run.

    Args:
        processes: the processes at the start.
        notice: is called with a line for people, and true if it is good news.
        restarted: is called when another process replaces one that has ended.
        now: returns the seconds since the run began.
    """

    def __init__(
        self,
        processes: Sequence[WatchedProcess],
        notice: Callable[[str, bool], None],
        restarted: Callable[[ProcessRestarted], None],
        now: Callable[[], float],
    ) -> None:
        self._processes = {each.name: each for each in processes}
        self._group: asyncio.TaskGroup | None = None
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._notice = notice
        self._restarted = restarted
        self._now = now
        self._silent: dict[str, float] = {}
        self._restarts: dict[str, int] = {}
        """Number of reported restarts of each process."""
        self._waits: dict[str, dict[str, ProcessWait]] = {}
        """Reported waits of each process that still go on, by what the process waits for."""
        self._told_lines: dict[str, tuple[int, int]] = {}
        """Number of the last reported line of each process, and the number of restarts of the process at that time."""

    @property
    def silent(self) -> dict[str, float]:
        """Processes that have ended or do not answer, with the second of the run of their last heartbeat."""
        return dict(self._silent)

    async def watch(self) -> None:
        """Watch all processes for ever, whatever goes wrong with one of them."""
        number = 0
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._watch_own_waits())
            for process in self._processes.values():
                first = first_heartbeat_secs(number, self._count_of_many, EVERY_SECS) if process.is_one_of_many else 0.0
                number += process.is_one_of_many
                self._watched[process.name] = group.create_task(self._watch_on(process, first))

    async def look(self, within_secs: float) -> None:
        """Ask every process once more, so that losses since the last heartbeat are reported too."""

        async def look_at(process: WatchedProcess) -> None:
            with contextlib.suppress(ActorLostError, TimeoutError):
                async with asyncio.timeout(within_secs):
                    self._count(process, await process.beat())

        await asyncio.gather(*map(look_at, self._processes.values()))

    def add(self, process: WatchedProcess) -> None:
        """Watch one more process."""
        self._processes[process.name] = process
        self._restarts.pop(process.name, None)
        if self._group is not None:
            self._watched[process.name] = self._group.create_task(self._watch_on(process, 0.0))

    def remove(self, name: str) -> None:
        """Stop watching a process: its end is intended."""
        self._processes.pop(name, None)
        watched = self._watched.pop(name, None)
        if watched is not None:
            watched.cancel()
        self._silent.pop(name, None)

    @property
    def _count_of_many(self) -> int:
        """The number of builders and devices."""
        return sum(process.is_one_of_many for process in self._processes.values())

    def _every_secs(self, process: WatchedProcess) -> float:
        return interval_secs(self._count_of_many, EVERY_SECS) if process.is_one_of_many else EVERY_SECS

    async def _watch_on(self, process: WatchedProcess, first_heartbeat_secs: float) -> None:
        await asyncio.sleep(first_heartbeat_secs)
        while True:
            try:
                await self._watch(process)
            except Exception as error:
                _LOG.exception("watching %s failed", process.name)
                self._notice(f"watching {process.name} failed and begins anew: {error_line(error)}", False)
            await asyncio.sleep(self._every_secs(process))

    async def _watch(self, process: WatchedProcess) -> None:
        patience_secs = START_SECS
        heard = self._now()
        dead = lost = False
        while True:
            try:
                answer = await self._heartbeat(process, patience_secs, heard)
            except ActorLostError as error:
                if isinstance(error, ActorDeadError):
                    if not dead:
                        self._notice(f"the process of {process.name} has ended for good: {error_line(error)}", False)
                    dead = True
                elif not lost:
                    lost = True
                    self._report(process, 1)
                self._silent.setdefault(process.name, heard)
                patience_secs = START_SECS
            else:
                self._count(process, answer)
                self._hear(process.name, answer)
                lost = False
                if self._silent.pop(process.name, None) is not None:
                    self._notice(f"{process.name} answers again, after {self._now() - heard:.0f} s", True)
                heard, dead = self._now(), False
                patience_secs = LONG_PATIENCE_SECS if process.computes else PATIENCE_SECS
            await asyncio.sleep(self._every_secs(process))

    async def _watch_own_waits(self) -> None:
        """Report the waits of this process, and its lines from now on."""
        before = max((line.number for line in heartbeat().lines), default=0)
        self._told_lines[_THIS_PROCESS] = heartbeat().restarts, before
        while True:
            self._hear(_THIS_PROCESS, heartbeat())
            await asyncio.sleep(EVERY_SECS)

    def _hear(self, name: str, answer: Heartbeat) -> None:
        """Report the new waits in an answer, the end of waits that are no longer in it, and its new lines."""
        restarts, last = self._told_lines.get(name, (answer.restarts, 0))
        for line in answer.lines:
            if line.number > last or restarts != answer.restarts:  # another process counts from 1
                self._notice(line.text, False)
                self._told_lines[name] = answer.restarts, line.number
        reported = self._waits.get(name, {})
        current = {wait.what: wait for wait in sorted(answer.waits, key=lambda wait: wait.secs)}  # the longest of each
        for what, wait in current.items():
            if what not in reported or reported[what].whom != wait.whom:
                self._notice(f"{name} waits for {wait.text_so_far}", False)
        for what, wait in reported.items():
            if what not in current:
                self._notice(f"{name} goes on: it waited for {wait.text}", True)
        self._waits[name] = current

    def _count(self, process: WatchedProcess, answer: Heartbeat) -> None:
        """Report the restarts in an answer that are not reported yet."""
        unreported = answer.restarts - self._restarts.get(process.name, 0)
        if unreported > 0:
            self._report(process, unreported)
        self._restarts[process.name] = answer.restarts

    def _report(self, process: WatchedProcess, times: int) -> None:
        self._restarts[process.name] = self._restarts.get(process.name, 0) + times
        self._restarted(ProcessRestarted(process.name, process.role, times))

    async def _heartbeat(self, process: WatchedProcess, patience_secs: float, heard: float) -> Heartbeat:
        """Wait for one heartbeat. A process that does not answer for ``patience_secs`` is ended; the heartbeat
        raises ActorLostError then."""
        beat = asyncio.ensure_future(process.beat())
        looked, silent_secs = process.clock(), 0.0
        try:
            while True:
                done, _ = await asyncio.wait([beat], timeout=_LOOK_SECS)
                if done:
                    return beat.result()
                # Time in which this process itself stood still does not count as silence of the other process.
                now = process.clock()
                silent_secs, looked = silent_secs + min(now - looked, 2 * _LOOK_SECS), now
                if silent_secs >= SILENT_SECS and process.name not in self._silent and patience_secs < START_SECS:
                    self._silent[process.name] = heard
                    self._notice(f"{process.name} gives no sign of life", False)
                if silent_secs >= patience_secs:
                    self._notice(
                        f"{process.name} gave no sign of life for {silent_secs:.0f} s: its process is ended", False
                    )
                    process.end()
                    silent_secs, patience_secs = 0.0, START_SECS
        finally:
            beat.cancel()
