"""The client of the scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from actors.clients.base import ActorClient
from actors.clients.builder import BuilderClient
from actors.clients.calls import ask
from actors.clients.device import DeviceHandle
from actors.clients.searcher import SearcherClient
from fleet_tune.base.results import Progress
from policies.runs.plan import PlannedTask

_START_SECS = 120.0
_TELL_SECS = 30.0


class SchedulerClient(ActorClient):
    """See :class:`actors.scheduling.scheduler.Scheduler`."""

    async def started(self) -> None:
        """Until its process answers."""
        await ask(self._actor.progress.remote(), _START_SECS, "scheduler")

    async def described(self, task_id: str, rules: Sequence[str], enough: int = 0) -> None:
        """A task of the plan has sketches, made by ``rules``. ``enough``: as :attr:`SearchTask.enough`."""
        await ask(self._actor.described.remote(task_id, rules, enough), _TELL_SECS, "a task that is described")

    async def undescribable(self, task_id: str) -> None:
        """A task of the plan has no sketch."""
        await ask(self._actor.undescribable.remote(task_id), _TELL_SECS, "a task that is described")

    async def await_class(self, device_class: str) -> None:
        """See :meth:`actors.scheduling.scheduler.Scheduler.await_class`."""
        await ask(self._actor.await_class.remote(device_class), _TELL_SECS, "a class that is awaited")

    async def add_class(
        self, device_class: str, tasks: Sequence[PlannedTask], searchers: Mapping[str, SearcherClient]
    ) -> bool:
        """See :meth:`actors.scheduling.scheduler.Scheduler.add_class`."""
        added: bool = await ask(
            self._actor.add_class.remote(device_class, tasks, searchers), _TELL_SECS, "a class that joins"
        )
        return added

    async def add_builders(self, builders: Mapping[int, BuilderClient]) -> None:
        """See :meth:`actors.scheduling.scheduler.Scheduler.add_builders`."""
        await ask(self._actor.add_builders.remote(builders), _TELL_SECS, "builders that join")

    async def remove_builders(self, builders: Sequence[int]) -> None:
        """See :meth:`actors.scheduling.scheduler.Scheduler.remove_builders`."""
        await ask(self._actor.remove_builders.remote(builders), _TELL_SECS, "builders that leave")

    async def add_device(self, device_id: str, candidate_secs: float) -> None:
        """See :meth:`actors.scheduling.scheduler.Scheduler.add_device`."""
        await ask(self._actor.add_device.remote(device_id, candidate_secs), _TELL_SECS, "a device that is waited for")

    async def appeared(self, device_id: str, device_class: str, device: DeviceHandle) -> None:
        """See :meth:`actors.scheduling.scheduler.Scheduler.appeared`."""
        await ask(self._actor.appeared.remote(device_id, device_class, device), _TELL_SECS, "a device that joins")

    async def remove_device(self, device_id: str, reason: str) -> None:
        """See :meth:`actors.scheduling.scheduler.Scheduler.remove_device`."""
        await ask(self._actor.remove_device.remote(device_id, reason), _TELL_SECS, "a device that leaves")

    async def noticed(self, text: str, well: bool = False) -> None:
        """People are to be told this."""
        await ask(self._actor.noticed.remote(text, well), _TELL_SECS, "tell people")

    def end(self) -> None:
        """End its process for good."""
        import ray

        with contextlib.suppress(Exception):  # it may be gone by itself meanwhile
            ray.kill(self._actor, no_restart=True)

    async def progress(self) -> Progress:
        progress: Progress = await ask(self._actor.progress.remote(), 10.0, "progress")
        return progress

    async def run(self) -> None:
        """Tune. No deadline of its own: it lasts as long as the budget, and :meth:`stop` bounds its end."""
        await ask(self._actor.run.remote(), None, "the scheduler")

    async def stop(self) -> None:
        """Stop granting."""
        await ask(self._actor.stop.remote(), 1.0, "stop")
