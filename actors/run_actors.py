"""The actors of a run on the driver's node: recorder, learner, searchers, and the scheduler or its successor."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.clients.builder import builder_clients
from actors.clients.calls import ByValue, remote_actor
from actors.clients.handles import ActorHandles
from actors.clients.learner import LearnerClient
from actors.clients.recorder import RecorderClient
from actors.clients.scheduler import SchedulerClient
from actors.clients.searcher import SearcherClient
from actors.pickling import send_by_value
from actors.processes.learner import Learner
from actors.processes.recorder import Recorder
from actors.processes.searcher import Searcher
from actors.processes.task_registry import TaskRegistry
from actors.run_hosts import RunHosts
from actors.scheduling.heartbeats import WatchedProcess
from actors.scheduling.scheduler import Scheduler, SchedulerPlan
from actors.session_plan import SessionPlan, deal_out
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import FleetTuneError
from fleet_tune.base.results import ProcessRole
from fleet_tune.base.search_task import SearchTask
from policies.runs.stages.pace import searchers as searchers_for


class RunActors:
    """The recorder, learner, searchers and scheduler of a run. Make one with :meth:`start`; :meth:`close` ends them."""

    def __init__(
        self,
        hosts: RunHosts,
        plan: SessionPlan,
        registry: TaskRegistry,
        store: Path,
        meta: Mapping[str, str],
        by_role: dict[str, list[Any]],
    ) -> None:
        self._hosts = hosts
        self._placement = hosts.cluster.here()
        self._registry = registry
        self.by_role = by_role
        """The actors of each role, in the order in which the roles were started."""
        devices = hosts.actors.devices
        most = min(searchers_for(len(devices)), usable_cpus())
        self.dealt = deal_out(plan.tasks, most)
        """The number of the searcher of each task, by the task's id."""
        self.recorder = RecorderClient(self._started("recorder", Recorder, str(store), meta, concurrency=256))
        # Handles are passed by value: Ray prints a warning for each handle among the arguments of an actor that may
        # restart.
        recorder = ByValue(self.recorder)
        window = None if hosts.window is None else str(hosts.window.path)
        models = store.parent.absolute() / "models"
        send_by_value(plan.method)
        learner = self._started("learner", Learner, registry, plan.method, plan.seed, recorder, window, str(models))
        self.learner = LearnerClient(learner, hosts.window)
        self.searchers: list[SearcherClient] = []
        for number in range(1 + max(self.dealt.values(), default=0)):
            others = frozenset(task_id for task_id, dealt_to in self.dealt.items() if dealt_to != number)
            searcher = self._started(
                "searchers",
                Searcher,
                registry,
                plan.method,
                plan.seed,
                recorder,
                ByValue(self.learner),
                window,
                others,
            )
            self.searchers.append(SearcherClient(searcher, hosts.window))
        self.handles = ActorHandles(
            searchers={task_id: self.searchers[number] for task_id, number in self.dealt.items()},
            builders=builder_clients(hosts.actors.builders),
        )
        """The handles of the actors that a scheduler calls."""

    @classmethod
    async def start(cls, hosts: RunHosts, plan: SessionPlan, store: Path, meta: Mapping[str, str]) -> RunActors:
        """Start the processes of all actors but the scheduler. If that fails, the started actors are ended. See
        :meth:`ready`."""
        registry = TaskRegistry(hosts.cluster.folder / "tasks")
        await asyncio.to_thread(registry.open)
        by_role: dict[str, list[Any]] = {}
        try:
            return cls(hosts, plan, registry, store, meta, by_role)
        except BaseException:
            if not hosts.cluster.is_lost:
                _end(by_role)
            await asyncio.to_thread(registry.close)
            raise

    async def ready(self, tasks: Sequence[SearchTask]) -> None:
        """Store the tasks, and wait until the searchers have read the records."""
        await self.recorder.put_tasks([entry.task for entry in tasks])
        await asyncio.gather(*(searcher.start() for searcher in self.searchers))
        self.learner.start()

    def start_scheduler(self, plan: SchedulerPlan) -> SchedulerClient:
        """Start a scheduler with the handles that exist by now."""
        scheduler = remote_actor(Scheduler, concurrency=64, scheduling_strategy=self._placement).remote(
            plan, self.recorder, self.handles, self.learner
        )
        self.by_role["scheduler"] = [scheduler]  # earlier schedulers have ended
        return SchedulerClient(scheduler, self.handles)

    async def add_tasks(self, tasks: Sequence[SearchTask]) -> dict[str, int]:
        """Store more tasks, all of one class, and deal them out to the searchers. Return the number of the searcher of
        each task, by the task's id."""
        await self.recorder.put_tasks([entry.task for entry in tasks])
        dealt = deal_out(tasks, len(self.searchers))
        self.handles.searchers |= {task_id: self.searchers[number] for task_id, number in dealt.items()}
        return dealt

    async def describe(self, entry: SearchTask) -> None:
        """Write a described task into the registry."""
        await asyncio.to_thread(self._registry.add, entry.without_module())

    @property
    def members(self) -> list[WatchedProcess]:
        """The processes of all but the scheduler, for the heartbeats."""
        window = self._hosts.window
        clock = time.monotonic if window is None else window.clock
        return [
            WatchedProcess("the recorder", ProcessRole.RECORDER, self.recorder.beat, self.recorder.restart),
            WatchedProcess("the learner", ProcessRole.LEARNER, self.learner.beat, self.learner.restart, True, clock),
            *(
                WatchedProcess(f"searcher {number}", ProcessRole.SEARCHER, each.beat, each.restart, True, clock)
                for number, each in enumerate(self.searchers)
            ),
        ]

    async def close(self) -> None:
        """Close the store and end every actor. Acknowledged records are already durable, so that a missed deadline
        loses none."""
        if self._hosts.cluster.is_lost:
            return
        with contextlib.suppress(FleetTuneError):
            await self.recorder.close()
        _end(self.by_role)
        await asyncio.to_thread(self._registry.close)

    def _started(self, role: str, cls: type, *arguments: Any, concurrency: int = 64) -> Any:
        actor = remote_actor(cls, restarts=-1, concurrency=concurrency, scheduling_strategy=self._placement).remote(
            *arguments
        )
        self.by_role.setdefault(role, []).append(actor)
        return actor


def _end(by_role: Mapping[str, Sequence[Any]]) -> None:
    """End actors. Actors that call others end before them."""
    import ray

    for actor in reversed(list(itertools.chain(*by_role.values()))):
        with contextlib.suppress(Exception):
            ray.kill(actor, no_restart=True)
