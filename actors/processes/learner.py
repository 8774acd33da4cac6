"""The learner actor: trains the cost models in the background and publishes each version once.

One learner serves all tasks and device classes. If the method's model reads features that all tasks share, there is one
model for each device class. It is trained on the records of all tasks of the class, except tasks that start from their
own model. Otherwise there is one model for each task. At every start the learner follows the records from the first
one. It keeps the records of a task that is still being described until the task is described. Searchers take new
versions when they like; a slow or dead learner never stops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from actors.clients.calls import WINDOW_WAIT_SECS, ByValue, error_line, relax_garbage_collection
from actors.clients.recorder import RecorderClient
from actors.heartbeat import Heartbeat, heartbeat
from actors.processes.searcher import Priors, group_observations, model_key
from actors.processes.task_registry import BufferedRecords, TaskRegistry
from devices.host.current_folder import enter_any_folder
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.domain import Record
from fleet_tune.base.records.files.atomic_file import write_atomically
from policies.cost_models.xgboost_module import spare_scikit_learn
from policies.search.methods import Method
from policies.search.trainer import Trainer
from policies.search.training_table import TrainingTable

_LOG = logging.getLogger(__name__)
# A model is first trained at this many records, and again when the number of its records has grown by this share. A
# model that is trained in hundredths of a second is trained sooner and more often.
_FIRST_TRAINING, _GROWTH = 16, 0.15
_FIRST_QUICK_TRAINING, _QUICK_GROWTH = 8, 0.05
MODEL_SUFFIX = ".model"


class Learner:
    """Async actor. ``follow`` waits for models newer than the caller's.

    ``folder``: where the models are kept for later starts, None for nowhere. A model that is adapted again and again
    cannot be made again from the records alone.
    """

    def __init__(
        self,
        registry: TaskRegistry,
        method: Method,
        seed: int,
        recorder: ByValue[RecorderClient],
        quiet_window: str | None,
        folder: str | None = None,
    ) -> None:
        enter_any_folder()  # cost models may load torch
        spare_scikit_learn()
        relax_garbage_collection()
        self._method = method
        self._seed = seed
        self._registry = registry
        self._priors = Priors(self._method)
        self._early = BufferedRecords()
        # By task id, once a task is known: see _add_task.
        self._tables: dict[str, TrainingTable] = {}
        self._sketch_index: dict[str, dict[str, int]] = {}
        self._records: dict[str, int] = {}
        # By the key of a model.
        self._members: dict[str, list[str]] = {}  # its tasks
        self._trainers: dict[str, Trainer] = {}
        self._trained: dict[str, int] = {}
        self._recorder = recorder.get()
        self._window = QuietWindow(Path(quiet_window), WINDOW_WAIT_SECS) if quiet_window else None
        self._published: dict[str, tuple[int, Any]] = {}  # key -> (version, object reference of the weights)
        self._trained_unix_secs: float | None = None
        self._changed = asyncio.Condition()
        self._worker: asyncio.Task[None] | None = None
        # Models made anew from the records at every training need no file.
        self._folder = Path(folder) if folder is not None and self._method.learns_on else None

    async def start(self) -> None:
        """Begin to follow the records and to train."""
        if self._worker is None and self._method.learns_online:
            self._worker = asyncio.create_task(self._train_from_records())

    async def follow(self, versions: Mapping[str, int], wait_secs: float) -> dict[str, tuple[int, list[Any]]]:
        """Return models newer than ``versions``: (version, [object reference of the weights]) by the id of a task or
        the name of a device class. Wait up to ``wait_secs`` for the first. The reference is in a list, so that Ray does
        not fetch the weights on the way."""
        await self.start()

        def newer() -> dict[str, tuple[int, list[Any]]]:
            return {
                key: (version, [weights])
                for key, (version, weights) in self._published.items()
                if version > versions.get(key, 0)
            }

        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: bool(newer())), wait_secs)
        return newer()

    async def beat(self) -> Heartbeat:
        """A sign of life, also while a model is trained."""
        return heartbeat()

    async def failure(self, wait_secs: float) -> str:
        """Wait for the error that ends the training. Return it in one line, or an empty text if the training has not
        failed within ``wait_secs``."""
        await self.start()
        if self._worker is None:  # this method does not train online
            await asyncio.sleep(wait_secs)
            return ""
        await asyncio.wait([self._worker], timeout=wait_secs)
        error = self._worker.exception() if self._worker.done() else None
        return "" if error is None else error_line(error)

    async def trained(self) -> float | None:
        """Return the unix time of the last training; None before the first."""
        return self._trained_unix_secs

    async def _train_from_records(self) -> None:
        async for records in self._recorder.stream():
            early = [record for record in records if record.task_id not in self._tables]
            self._observe(records)
            self._early.keep(early)
            for task_id in self._early.task_ids:
                if await asyncio.to_thread(self._add_task, task_id):
                    self._observe(self._early.take(task_id))
            # While old records are still being read, a training would use only a part of them.
            if len(records) < 256:
                await self._train_due()

    def _observe(self, records: Sequence[Record]) -> None:
        """Take in records of tasks that are known."""
        for task_id, observations in group_observations(records, self._sketch_index).items():
            self._tables[task_id].observe(observations)
            self._records[task_id] += len(observations)

    def _add_task(self, task_id: str) -> bool:
        """Add a task if it is described by now. Return true if it is."""
        entry = self._registry.find(task_id)
        if entry is None:
            return False
        prior, training = self._priors.loaded(entry.prior), self._method.training
        self._sketch_index[task_id] = {sketch.id: sketch.index for sketch in entry.sketches}
        self._records[task_id] = 0
        key = model_key(entry, self._method)
        if key not in self._members:
            self._members[key], self._trained[key] = [], 0
            if training is not None:
                self._trainers[key] = Trainer(training, prior)
                self._resume(key)
        self._tables[task_id] = TrainingTable(entry.sketches, entry.abstraction, self._method.views_with(prior))
        self._members[key].append(task_id)
        return True

    async def _train_due(self) -> None:
        """Train each model that has enough new records. An error does not keep the others from being trained: the first
        one is raised at the end."""
        errors: list[Exception] = []
        quick = self._method.training is not None and self._method.training.quick
        first, growth = (_FIRST_QUICK_TRAINING, _QUICK_GROWTH) if quick else (_FIRST_TRAINING, _GROWTH)
        for key, members in self._members.items():
            count = sum(self._records[task_id] for task_id in members)
            if count < first or count < self._trained[key] * (1 + growth) + 1:
                continue
            self._trained[key] = count
            try:
                weights = await asyncio.to_thread(self._train, key)
            except Exception as error:
                _LOG.exception("no new model of %s", key)  # the search keeps the last one, or its calibration
                errors.append(error)
                continue
            if weights is None:
                continue
            self._trained_unix_secs = time.time()
            async with self._changed:
                # The number of records is the version: it only grows, also over a restart of this actor.
                self._published[key] = (count, ray.put(weights))
                self._changed.notify_all()
        if errors:
            raise errors[0]

    def _train(self, key: str) -> bytes | None:
        """Train the model of ``key`` on all its records, and return it as saved bytes. None while there is nothing to
        train on."""
        training_sets = {
            task_id: self._tables[task_id].training_set()
            for task_id in self._members[key]
            if math.isfinite(self._tables[task_id].best_secs)
        }
        if not training_sets:
            return None
        with self._window.stoppable() if self._window else contextlib.nullcontext():
            model = self._trainers[key].train(training_sets, self._seed)
        if model is None:
            return None
        weights = model.save()
        self._keep(key, weights)
        return weights

    def _resume(self, key: str) -> None:
        """Go on from the model file that an earlier process left, if there is one."""
        path = self._path(key)
        if path is None or not path.is_file():
            return
        try:
            model = self._priors.read(path.read_bytes())
            if self._trainers[key].takes(model):
                self._trainers[key].resume(model)
        except (OSError, ValueError) as error:
            _LOG.warning("%s is not used: %s", path, error)  # the model starts anew, as without the file

    def _keep(self, key: str, weights: bytes) -> None:
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, weights, durable=False)  # a partial one is not used: see _resume
        except OSError as error:
            _LOG.warning("the model of %s is not kept: %s", key, error)

    def _path(self, key: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{key}{MODEL_SUFFIX}"
