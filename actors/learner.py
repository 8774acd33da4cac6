"""The learner actor: trains the cost models in the background and publishes each version once.

One learner serves all tasks and device classes. Where the method's model reads features that all tasks share, there is
one model for each device class, trained on the records of all its tasks; else one for each task. Its data are the
records, followed from the first one at every start. Searchers take new versions when they like; a slow or dead learner
never stops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from actors.calls import WINDOW_WAIT_SECS, Shared
from actors.clients import RecorderClient
from actors.searcher import group_observations, loaded_priors
from devices.host.quiet import QuietWindow
from fleet_tune.records.atomic_file import write_atomically
from fleet_tune.search_task import SearchTask
from policies.cost_models.registry import load_model
from policies.cost_models.xgboost_module import spare_scikit_learn
from policies.features.table import SYMBOLIC
from policies.search.methods import method_named
from policies.search.trainer import Trainer
from policies.search.training_table import TrainingTable

_LOG = logging.getLogger(__name__)
# A model is trained from this many records on, and again when its records have grown by this share.
_FIRST_TRAINING = 16
_GROWTH = 0.15
MODEL_SUFFIX = ".model"


class Learner:
    """Async actor. ``follow`` waits for models newer than the caller's.

    ``folder``: where the models of device classes are kept from run to run, None for nowhere. What a model that is
    adapted on and on has become cannot be had from the records alone.
    """

    def __init__(
        self,
        tasks: Shared[tuple[SearchTask, ...]],
        method: str,
        seed: int,
        recorder: Shared[RecorderClient],
        quiet_window: str | None,
        folder: str | None = None,
    ) -> None:
        spare_scikit_learn()
        chosen = method_named(method)
        entries = tasks.get()
        priors = loaded_priors(entries)
        self._seed = seed
        self._trains = chosen.learns_online
        self._tables = {
            entry.task.id: TrainingTable(entry.sketches, entry.abstraction, chosen.views_with(priors[entry.prior]))
            for entry in entries
        }
        self._sketch_index = {
            entry.task.id: {sketch.id: sketch.index for sketch in entry.sketches} for entry in entries
        }
        self._recorder = recorder.get()
        self._window = QuietWindow(Path(quiet_window), WINDOW_WAIT_SECS) if quiet_window else None
        self._records = dict.fromkeys(self._tables, 0)
        self._members = _models_of(entries, chosen.views)  # key of a model -> its tasks
        prior_of = {entry.task.id: priors[entry.prior] for entry in entries}
        self._trainers = (
            {}
            if chosen.training is None
            else {key: Trainer(chosen.training, prior_of[members[0]]) for key, members in self._members.items()}
        )
        self._trained = dict.fromkeys(self._members, 0)
        self._published: dict[str, tuple[int, Any]] = {}  # key -> (version, object reference of the weights)
        self._changed = asyncio.Condition()
        self._worker: asyncio.Task[None] | None = None
        # Models made anew from the records at every training need no file.
        self._folder = Path(folder) if folder is not None and chosen.learns_on else None
        self._resume()

    async def start(self) -> None:
        """Begin to follow the records and to train."""
        if self._worker is None and self._trains:
            self._worker = asyncio.create_task(self._train_from_records())

    async def follow(self, versions: Mapping[str, int], wait_secs: float) -> dict[str, tuple[int, list[Any]]]:
        """Models newer than ``versions``: (version, [object reference of the weights]) by the id of a task or the name
        of a device class; waits up to ``wait_secs`` for the first. The reference stands in a list, so that Ray does not
        fetch it on the way."""
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

    async def _train_from_records(self) -> None:
        async for records in self._recorder.stream():
            for task_id, observations in group_observations(records, self._sketch_index).items():
                self._tables[task_id].observe(observations)
                self._records[task_id] += len(observations)
            # While old records are still being read, training would be on a part of them.
            if len(records) < 256:
                await self._train_due()

    async def _train_due(self) -> None:
        for key, members in self._members.items():
            count = sum(self._records[task_id] for task_id in members)
            if count < _FIRST_TRAINING or count < self._trained[key] * (1 + _GROWTH) + 1:
                continue
            self._trained[key] = count
            try:
                weights = await asyncio.to_thread(self._train, key)
            except Exception:
                _LOG.exception("no new model of %s", key)  # the search has the last one, or its own calibration
                continue
            if weights is None:
                continue
            async with self._changed:
                # The number of records is the version: it only grows, also over a restart of this actor.
                self._published[key] = (count, ray.put(weights))
                self._changed.notify_all()

    def _train(self, key: str) -> bytes | None:
        """The saved model of ``key`` after all its records; None while none of them succeeded."""
        training_sets = {
            task_id: self._tables[task_id].training_set()
            for task_id in self._members[key]
            if math.isfinite(self._tables[task_id].best_secs)
        }
        if not training_sets:
            return None
        with self._window.working() if self._window else contextlib.nullcontext():
            model = self._trainers[key].train(training_sets, self._seed)
        if model is None:
            return None
        weights = model.save()
        self._keep(key, weights)
        return weights

    def _resume(self) -> None:
        """Go on from the models that an earlier process of this run left."""
        for key, trainer in self._trainers.items():
            path = self._path(key)
            if path is None or not path.is_file():
                continue
            try:
                model = load_model(path.read_bytes())
                if trainer.takes(model):
                    trainer.resume(model)
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


def _models_of(entries: tuple[SearchTask, ...], views: tuple[str, ...]) -> dict[str, list[str]]:
    """The tasks of each model by its key: a device class where all its tasks share a model, else the task itself."""
    classes: dict[str, list[SearchTask]] = {}
    for entry in entries:
        classes.setdefault(entry.task.device_class.name, []).append(entry)
    members: dict[str, list[str]] = {}
    for name, of_class in classes.items():
        if SYMBOLIC not in views and len({entry.prior for entry in of_class}) == 1:
            members[name] = [entry.task.id for entry in of_class]
        else:
            members |= {entry.task.id: [entry.task.id] for entry in of_class}
    return members
