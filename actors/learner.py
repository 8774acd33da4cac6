"""The learner actor: trains the cost models in the background and publishes each version once.

Its data are the records, followed from the first one at every start. Searchers take new versions when they like; a
slow or dead learner never stops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray

from actors.calls import WINDOW_WAIT_SECS, ActorLostError, ActorTimeoutError, Shared, ask
from actors.searcher import SearchTask, group_observations
from devices.quiet import QuietTimeoutError, QuietWindow
from policies.presets import preset
from policies.search import TaskSearch

_LOG = logging.getLogger(__name__)
_FOLLOW_SECS = 5.0
_RETRY_SECS = 1.0
# A task is trained from this many records on, and again when its records have grown by this share.
_FIRST_TRAINING = 16
_GROWTH = 0.15


class Learner:
    """Async actor. ``follow`` waits for models newer than the caller's."""

    def __init__(
        self,
        tasks: Shared[tuple[SearchTask, ...]],
        method: str,
        seed: int,
        recorder: Shared[Any],
        quiet_window: str | None,
    ) -> None:
        chosen = preset(method)
        entries = tasks.get()
        self._seed = seed
        # A search is used here for what it knows of its records only: it turns them into a training set.
        self._searches = {
            entry.task.id: TaskSearch(
                entry.sketches, entry.task.workload.flop, entry.abstraction, chosen, np.random.default_rng(seed)
            )
            for entry in entries
        }
        self._sketch_index = {
            entry.task.id: {sketch.id: sketch.index for sketch in entry.sketches} for entry in entries
        }
        self._preset = chosen
        self._recorder = recorder.get()
        self._window = QuietWindow(Path(quiet_window), WINDOW_WAIT_SECS) if quiet_window else None
        self._records = dict.fromkeys(self._searches, 0)
        self._trained = dict.fromkeys(self._searches, 0)
        self._published: dict[str, tuple[int, Any]] = {}  # task id -> (version, object reference of the weights)
        self._changed = asyncio.Condition()
        self._worker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow the records and to train."""
        if self._worker is None and self._preset.learned_model:
            self._worker = asyncio.create_task(self._train_from_records())

    async def follow(self, versions: Mapping[str, int], wait_secs: float) -> dict[str, tuple[int, list[Any]]]:
        """Models newer than ``versions`` by task id: (version, [object reference of the weights]); waits up to
        ``wait_secs`` for the first. The reference stands in a list, so that Ray does not fetch it on the way."""
        await self.start()

        def newer() -> dict[str, tuple[int, list[Any]]]:
            return {
                task_id: (version, [weights])
                for task_id, (version, weights) in self._published.items()
                if version > versions.get(task_id, 0)
            }

        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: bool(newer())), wait_secs)
        return newer()

    async def _train_from_records(self) -> None:
        cursor = 0
        while True:
            try:
                records = await ask(self._recorder.follow.remote(cursor, _FOLLOW_SECS), 60.0, "follow the records")
            except (ActorLostError, ActorTimeoutError) as error:
                _LOG.warning("%s", error)
                await asyncio.sleep(_RETRY_SECS)
                continue
            for task_id, observations in group_observations(records, self._sketch_index).items():
                self._searches[task_id].observe(observations)
                self._records[task_id] += len(observations)
            if records:
                cursor = records[-1].seq
            # While old records are still being read, training would be on a part of them.
            if len(records) < 256:
                await self._train_due()

    async def _train_due(self) -> None:
        for task_id, count in self._records.items():
            if count < _FIRST_TRAINING or count < self._trained[task_id] * (1 + _GROWTH) + 1:
                continue
            self._trained[task_id] = count
            try:
                weights = await asyncio.to_thread(self._train, task_id)
            except (ValueError, QuietTimeoutError):
                _LOG.exception("no new model of %s", task_id)  # the search has the last one, or its own calibration
                continue
            async with self._changed:
                # The number of records is the version: it only grows, also over a restart of this actor.
                self._published[task_id] = (count, ray.put(weights))
                self._changed.notify_all()

    def _train(self, task_id: str) -> bytes:
        known = self._searches[task_id].training_set()
        model = self._preset.make_model(self._seed, known.offset_column)
        with self._window.working() if self._window else contextlib.nullcontext():
            model.fit(known.features, known.log_secs, known.groups)
        return model.save()
