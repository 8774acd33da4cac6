"""The searcher actor: drafts, verifies and selects the candidates of its tasks, in one process, with no call per
candidate. Its state follows from the records, which it reads from the first one at every start."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from actors.clients.calls import WINDOW_WAIT_SECS, ByValue, relax_garbage_collection
from actors.clients.learner import LearnerClient
from actors.clients.recorder import RecorderClient
from actors.heartbeat import Heartbeat, heartbeat
from actors.processes.task_registry import BufferedRecords, TaskRegistry
from devices.host.current_folder import enter_any_folder
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.domain import Candidate, Record
from fleet_tune.base.search_task import SearchTask
from policies.cost_models.protocol import CostModel
from policies.cost_models.registry import load_model
from policies.cost_models.xgboost_module import spare_scikit_learn
from policies.runs.events import Proposed
from policies.search.methods import Method
from policies.search.search import Observation, TaskSearch
from policies.space.pools import Pool


class Searcher:
    """Async actor. ``propose`` returns new candidates of one task; records and model versions arrive in the
    background."""

    def __init__(
        self,
        registry: TaskRegistry,
        method: Method,
        seed: int,
        recorder: ByValue[RecorderClient],
        learner: ByValue[LearnerClient] | None,
        quiet_window: str | None,
        others: frozenset[str] = frozenset(),
    ) -> None:
        """``others``: ids of the run's tasks that other searchers search. This one is never asked for them."""
        enter_any_folder()  # cost models may load torch
        spare_scikit_learn()
        relax_garbage_collection()
        self._others = others
        self._method = method
        self._seed = seed
        self._registry = registry
        self._priors = Priors(self._method)
        self._early = BufferedRecords()
        self._models: dict[str, CostModel] = {}  # the newest model of each key
        # By task id, once a task is known: see _begin_search.
        self._tasks: dict[str, SearchTask] = {}
        self._searches: dict[str, TaskSearch] = {}
        self._sketch_index: dict[str, dict[str, int]] = {}
        self._recorder = recorder.get()
        self._learner = None if learner is None else learner.get()
        self._window = QuietWindow(Path(quiet_window), WINDOW_WAIT_SECS) if quiet_window else None
        self._caught_up = asyncio.Event()
        # The searches are not thread-safe: proposing runs in a thread, observing in the loop.
        self._lock = asyncio.Lock()
        self._followers: list[asyncio.Task[None]] = []
        self._proposed: dict[str, Proposed] = {}  # the last one of each task
        self._planned: dict[str, list[Candidate]] = {}

    async def start(self) -> None:
        """Read the records of earlier runs, then follow new ones and the learner's models in the background."""
        if not self._followers:
            self._followers = [asyncio.create_task(self._follow_records()), asyncio.create_task(self._follow_models())]
        caught_up = asyncio.create_task(self._caught_up.wait())
        await asyncio.wait([caught_up, *self._followers], return_when=asyncio.FIRST_COMPLETED)
        caught_up.cancel()
        for follower in self._followers:
            if follower.done():
                follower.result()  # a search that no longer learns must not go on in silence

    async def propose(self, task_id: str, count: int, last_proposal: int) -> Proposed:
        """Return up to ``count`` candidates that are neither measured nor pending.

        They are planned in batches of the method's published size, and handed out as they are requested.
        ``last_proposal``: number of the last proposal of this task that the caller received, 0 for none. A later
        proposal was lost on its way (the caller gave up waiting), so that its candidates are proposed again.
        """
        await self.start()
        async with self._lock:
            return await asyncio.to_thread(self._propose, task_id, count, last_proposal)

    async def beat(self) -> Heartbeat:
        """Return a sign of life, also while candidates are planned."""
        return heartbeat()

    async def forget(self) -> None:
        """Forget the proposals of an earlier scheduler, which is gone. Candidates without a record may be proposed
        again."""
        async with self._lock:
            for task_id, search in self._searches.items():
                search.release_all()
                self._planned[task_id].clear()
            self._proposed.clear()

    def _begin_search(self, task_id: str) -> None:
        """Begin the search of a task that is described by now, with the records that it has already."""
        entry = self._registry.find(task_id)
        if entry is None:
            raise ValueError(f"the task {task_id} is not described")
        search = TaskSearch(
            entry.sketches,
            entry.task.workload.flop,
            entry.abstraction,
            self._method,
            # One random stream per task, independent of the order in which tasks are served.
            np.random.default_rng([self._seed, *task_id.encode()]),
            pools_of(entry),
            self._priors.loaded(entry.prior),
            entry.seeds,
            entry.adapted,
        )
        self._sketch_index[task_id] = {sketch.id: sketch.index for sketch in entry.sketches}
        search.observe(group_observations(self._early.take(task_id), self._sketch_index).get(task_id, ()))
        key = model_key(entry, self._method)
        if key in self._models:
            search.use_model(self._models[key])
        self._planned[task_id] = []
        self._tasks[task_id] = entry
        self._searches[task_id] = search

    def _propose(self, task_id: str, count: int, last_proposal: int) -> Proposed:
        if task_id not in self._searches:
            with self._working():
                self._begin_search(task_id)
        search, sketches, planned = self._searches[task_id], self._tasks[task_id].sketches, self._planned[task_id]
        last = self._proposed.get(task_id)
        if last is not None and last.number > last_proposal:
            planned[:0] = last.candidates
        if len(planned) < count:
            with self._working():
                proposals = search.propose(max(self._method.batch, count - len(planned)))
            planned += [each.candidate(task_id, sketches[each.sketch].id) for each in proposals]
        proposed = Proposed(
            task_id,
            max(last_proposal, last.number if last is not None else 0) + 1,
            tuple(planned[:count]),
            search.exhausted and len(planned) <= count,
            search.predicted_gain,
        )
        del planned[:count]
        self._proposed[task_id] = proposed
        return proposed

    def _working(self) -> contextlib.AbstractContextManager[None]:
        return self._window.stoppable() if self._window else contextlib.nullcontext()

    async def _follow_records(self) -> None:
        async for records in self._recorder.stream():
            if not records:
                self._caught_up.set()
                continue
            async with self._lock:
                self._early.keep(each for each in records if self._is_awaited(each.task_id))
                for task_id, observations in group_observations(records, self._sketch_index).items():
                    self._searches[task_id].observe(observations)
                for record in records:
                    # Such a record says nothing about the candidate: its device was lost.
                    if record.task_id in self._searches and not record.measurement.outcome.blames_candidate:
                        self._release(record)

    def _is_awaited(self, task_id: str) -> bool:
        """Return true if the search of this task may still begin here."""
        return task_id not in self._searches and task_id not in self._others

    def _release(self, record: Record) -> None:
        index = self._sketch_index[record.task_id].get(record.candidate.sketch_id)
        if index is not None:
            lost = dataclasses.replace(record.candidate, sketch=index)
            self._searches[record.task_id].release([lost])

    async def _follow_models(self) -> None:
        """Take the learner's newest models; with a slow or dead learner, the search keeps the models that it has."""
        if self._learner is None:
            await asyncio.Event().wait()  # there is nothing to follow
            return
        async for models in self._learner.stream():
            for key, weights in models.items():
                model = self._priors.read(weights)
                async with self._lock:
                    self._models[key] = model
                    for task_id, entry in self._tasks.items():
                        if key == model_key(entry, self._method):
                            self._searches[task_id].use_model(model)


def pools_of(entry: SearchTask) -> tuple[Pool, ...] | None:
    """Return the candidates that a search of this task may propose; None for all."""
    if entry.recorded is None:
        return None
    return tuple(Pool(sketch, matrix) for sketch, matrix in zip(entry.sketches, entry.recorded, strict=True))


def model_key(entry: SearchTask, method: Method) -> str:
    """Return the key of the model that learns from a task's records: the name of its device class if the tasks of the
    class share a model, otherwise the id of the task."""
    alone = entry.own_prior or not method.shares_model
    return entry.task.id if alone else entry.task.device_class.name


class Priors:
    """Loads the cost models of a method, and the priors of tasks. Equal priors are loaded once."""

    def __init__(self, method: Method) -> None:
        self._own = () if method.training is None else (method.training.model,)
        self._loaded: dict[bytes, CostModel] = {}

    def read(self, model: bytes) -> CostModel:
        """Return the model of saved bytes. Raise ValueError for bytes that are neither the method's own model nor
        fleet-tune's."""
        return load_model(model, *self._own)

    def loaded(self, prior: bytes) -> CostModel | None:
        """Load the prior of these bytes; None for no bytes."""
        if not prior:
            return None
        if prior not in self._loaded:
            self._loaded[prior] = self.read(prior)
        return self._loaded[prior]


def group_observations(
    records: Sequence[Record], sketch_index: Mapping[str, Mapping[str, int]]
) -> dict[str, list[Observation]]:
    """Return records as observations, by task. Records of other tasks, of sketches that no longer exist, and with
    outcomes that say nothing about the candidate are left out."""
    grouped: dict[str, list[Observation]] = {}
    for record in records:
        index = sketch_index.get(record.task_id, {}).get(record.candidate.sketch_id)
        measured = record.measurement
        if index is None or not measured.outcome.blames_candidate:
            continue
        observation = Observation(
            index,
            record.candidate.decisions,
            measured.cost_secs,
            revised=record.revision > 0,
            weight=measured.weight,
        )
        grouped.setdefault(record.task_id, []).append(observation)
    return grouped
