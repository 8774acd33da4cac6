"""The tasks of prepared classes, handed to the session as they become ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from actors.clients.calls import error_line
from actors.clients.threads import in_thread
from actors.tuning_session import TuningSession
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.results import SkippedPart
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes
from fleet_tune.runs.preparing.ready_tasks import ReadyTask

_LOG = logging.getLogger(__name__)


class TaskFeed:
    """Describes the tasks of prepared classes and starts each in the session.

    Args:
        prepared: the classes.
        fleet: the fleet of the run.
        window: the quiet window of this machine.
        is_required: true for the classes with which a run begins: an error ends the run. If false, for a class that
            joined later, an error skips the tasks that are not described yet.
    """

    def __init__(
        self, prepared: Prepared, fleet: FleetConfig, window: QuietWindow | None, *, is_required: bool
    ) -> None:
        self.ready: list[ReadyTask] = []
        """The tasks that were started in the session or skipped."""
        self._prepared = prepared
        self._fleet = fleet
        self._window = window
        self._is_required = is_required
        self._open = contextlib.ExitStack()
        self._running: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """True after every task was handed to the session, or the feed has failed."""
        return self._running is not None and self._running.done()

    def describe(self) -> None:
        """Begin to describe the tasks in the background."""
        self._describing = device_classes.describe_tasks(self._prepared, self._fleet, self._window)
        self._open.callback(self._describing.close)
        self._describing.begin()

    def start(self, session: TuningSession) -> None:
        """Hand the tasks to the session in the background, as they become ready."""
        self._running = asyncio.create_task(self._run(session))

    def check(self) -> None:
        """Raise the error that ended the feed, if there was one."""
        if self._running is not None and self._running.done():
            self._running.result()

    async def wait(self) -> None:
        """Wait until every task is handed to the session. Raises the error that ended the feed."""
        if self._running is not None:
            await self._running

    def close(self) -> None:
        """End the feed."""
        if self._running is not None:
            self._running.cancel()
        self._open.close()

    async def _run(self, session: TuningSession) -> None:
        if self._is_required:
            await self._hand_over(session)
            return
        try:
            self.describe()
            await self._hand_over(session)
        except Exception as error:
            await self._skip_others(session, error)

    async def _hand_over(self, session: TuningSession) -> None:
        while (ready := await in_thread(next, self._describing, None)) is not None:
            if ready.entry.sketches:
                await session.start_task(ready.entry)
            else:
                await session.skip_task(ready.entry.task.id)
            self.ready.append(ready)

    async def _skip_others(self, session: TuningSession, error: Exception) -> None:
        tasks = self._prepared.undescribed
        name = tasks[0].task.device_class.name
        _LOG.error("not all tasks of class %s are described", name, exc_info=error)
        session.notice(f"tasks of class {name} are skipped in this run: {error_line(error)}", False)
        done = {ready.entry.task.id for ready in self.ready}
        for entry in tasks:
            task = entry.task
            if task.id not in done:
                missing = SkippedPart("task", task.workload.name, task.device_class.name, "", error_line(error))
                self.ready.append(ReadyTask(entry, (missing,)))
                await session.skip_task(task.id)
