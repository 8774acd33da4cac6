"""The supervisor of a run's scheduler. If the scheduler's process is lost, another one replaces it.

The next scheduler starts like a resumed run, with the same id and the rest of the budget. It gets the records, the
states of the devices, and the plan that the supervisor keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from actors.clients.calls import LOST, ActorDeadError, ActorLostError, first_line
from actors.clients.scheduler import SchedulerClient
from actors.clusters.cluster import Cluster
from actors.heartbeat import Heartbeat
from fleet_tune.base.errors import ClusterError
from fleet_tune.base.results import Notice, Progress
from policies.runs.events import ClassAdded, Event, NoticePosted, ProcessRestarted, StopRequested
from policies.runs.plan import RunPlan

_REST_SECS = 1.0
"""Time between a loss and the next scheduler. If the cluster is lost, that is noticed within this time and reported
instead."""
_STOP_SECS = 1.0
_MOST_TRIES = 30
"""Tries of posting a notice."""
_MOST_LOSSES = 5
"""Number of schedulers lost in a row, without a new record in between, at which the run ends."""


class SchedulerSupervisor:
    """Runs a scheduler, and another one each time that it is lost.

    Args:
        plan: the plan of the first scheduler.
        start: starts the process of a scheduler for a plan.
        last_seq: returns the sequence number of the last record.
        cluster: the cluster. If it is lost, no other scheduler is started.
    """

    def __init__(
        self,
        plan: RunPlan,
        start: Callable[[RunPlan], SchedulerClient],
        last_seq: Callable[[], Awaitable[int]],
        cluster: Cluster,
    ) -> None:
        self._plan = plan
        self._start = start
        self._last_seq = last_seq
        self._cluster = cluster
        self._scheduler = start(plan)
        self._last: Progress | None = None
        self._began: float | None = None
        self._stops = False
        self._is_over = False
        self._successors = 0
        """Number of schedulers that have replaced a lost one."""
        self._posting: set[asyncio.Task[None]] = set()

    @property
    def now(self) -> float:
        """Seconds since the run began; 0 before."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    async def started(self) -> None:
        """Wait until the scheduler's process answers."""
        await self._scheduler.started()

    async def run(self) -> None:
        """Wait until the run is over. Raises the error that ends it early; ClusterError if schedulers are lost again
        and again."""
        self._began = time.monotonic()
        losses, seq = 0, -1
        while True:
            try:
                await self._scheduler.run()
                self._is_over = True
                return
            except LOST as error:
                detail = first_line(error)
            await asyncio.sleep(_REST_SECS)
            last_seq = -1 if self._stops or self._cluster.is_lost else await self._last_seq()
            if self._stops:  # before, or while the recorder was asked
                return
            losses, seq = 1 if last_seq > seq else losses + 1, last_seq
            if losses >= _MOST_LOSSES or self._cluster.is_lost:
                next_step = "run the same command again: it resumes"
                raise ClusterError(f"the process that schedules the run was lost again and again: {detail}", next_step)
            self._replace(f"the process that schedules the run was lost: another goes on ({detail})")

    def _replace(self, text: str) -> None:
        self._scheduler.end()
        self._successors += 1
        told = self._last.notices if self._last is not None else ()
        number = max((notice.number for notice in told), default=0)
        before = dataclasses.replace(
            self._plan.before,
            secs=max(self.now, 1e-3),
            notices=(*told, Notice(number + 1, self.now, text)),
            device_changes=self._last.device_changes if self._last is not None else 0,
        )
        self._scheduler = self._start(dataclasses.replace(self._plan, before=before))

    async def tell(self, event: Event) -> bool:
        """Tell the scheduler of an event, and keep it in the plan with which another scheduler would start. Return the
        scheduler's answer (see :meth:`actors.scheduling.scheduler.Scheduler.tell`), or true if the scheduler is
        lost."""
        self._plan = self._plan.after(event, self.now)
        with contextlib.suppress(*LOST):
            accepted = await self._scheduler.tell(event)
            if not accepted and isinstance(event, ClassAdded):
                self._plan = self._plan.without_tasks(event.tasks)
            return accepted
        return True

    async def progress(self, *, is_silent: bool = False) -> Progress:
        """Return a snapshot. If the scheduler ``is_silent``, is lost, or has just replaced another one, return the last
        snapshot. Raises the errors of calls if there is no snapshot yet."""
        if self._last is not None and (is_silent or (self._is_over and self._last.phase == "finished")):
            return self._last
        try:
            progress = await self._scheduler.progress()
        except LOST:
            if self._last is None:
                raise
            return self._last
        if self._last is None or progress.phase != "starting" or self._last.phase == "starting":
            self._last = progress
        return self._last

    def notice(self, text: str, well: bool) -> None:
        """Post a notice; ``well``: it is good news."""
        self._in_background(self._post(text, well))

    def restarted(self, event: ProcessRestarted) -> None:
        """Tell the scheduler, or its successor, that a process was restarted. A scheduler that has finished takes no
        event: then the restart is added to the last snapshot."""
        self._plan = self._plan.after(event)
        if not self._is_over:
            self._in_background(self._tell_restart(event))
        elif self._last is not None:
            number = max((notice.number for notice in self._last.notices), default=0)
            notices = (*self._last.notices, Notice(number + 1, self.now, event.text))
            self._last = dataclasses.replace(self._last, notices=notices, restarts=self._plan.before.restarts)

    async def _tell_restart(self, event: ProcessRestarted) -> None:
        try:
            await self._scheduler.tell(event)
        except LOST:  # its successor takes the count from the plan, and needs only the notice
            await self._post(event.text, False)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)  # it ends by its deadline
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    async def _post(self, text: str, well: bool) -> None:
        """Post a notice to the scheduler, or to its successor if it is lost."""
        for _ in range(_MOST_TRIES):
            with contextlib.suppress(*LOST):
                await self._scheduler.tell(NoticePosted(text, well))
                return
            await asyncio.sleep(_REST_SECS)

    async def beat(self) -> Heartbeat:
        """Wait for a heartbeat of the scheduler. The number of its successors is given as its restarts."""
        try:
            await self._scheduler.beat()
            return Heartbeat(self._successors)
        except ActorDeadError as error:  # for Ray it is dead, but another one replaces it
            raise ActorLostError(first_line(error)) from error

    def end(self) -> None:
        """End the process of the scheduler, which hangs. Another one replaces it."""
        self._scheduler.end()

    async def stop(self) -> None:
        """Stop granting trials. A scheduler that is lost from now on has no successor."""
        self._stops = True
        with contextlib.suppress(*LOST):
            await self._scheduler.tell(StopRequested(), _STOP_SECS)
