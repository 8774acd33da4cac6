"""Copies of other runs' records in a run's own store, the log of that run in its output folder.

A copied record is no trial of the run, and the run's limits do not count it. A record of a candidate that the run
already knows is not copied, unless it says that the candidate was found wrong. Seconds are converted to the unit of the
run's devices of that class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from fleet_tune.base.domain import Record, Task
from fleet_tune.base.records.sharing.shared import SharedReader, is_found_wrong
from fleet_tune.base.records.stores.origin import Effort, Origin
from fleet_tune.base.records.stores.store import RecordStore


class RunStoreTarget:
    """Target of :func:`fleet_tune.base.records.sharing.shared.copy_records`: the run's ``store``, which ``reader``
    reads. Efforts of other runs are not efforts of this one, and are skipped."""

    def __init__(self, store: RecordStore, reader: SharedReader) -> None:
        self._store = store
        self._reader = reader
        self._tasks = {task.id for task in reader.tasks()}
        self._units = reader.class_units()
        self._known: dict[str, dict[str, int]] = {}  # by task id the last revision of each candidate

    def put_task(self, task: Task) -> None:
        """Store a task, unless the run has it: it then keeps its weight."""
        if task.id not in self._tasks:
            self._store.put_task(task)

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        """See :meth:`RecordStore.put_run`."""
        self._store.put_run(run_id, origins)

    def lacking(self, efforts: Sequence[Effort]) -> list[Effort]:  # noqa: ARG002
        """Return nothing: no effort is of this run."""
        return []

    def put_efforts(self, efforts: Iterable[Effort]) -> None:
        """Do nothing: see :meth:`lacking`."""

    def unit(self, name: str, secs: float) -> float:
        """See :meth:`RecordStore.unit`. The unit of a device class is that of the run's devices of the class, if there
        is one."""
        known = self._units.get(name)
        return self._store.unit(name, secs if known is None else known)

    def add(self, records: Sequence[Record]) -> int:
        """See :meth:`RecordStore.add`."""
        fresh = []
        for record in records:
            if record.task_id not in self._known:
                self._known[record.task_id] = self._reader.revisions(record.task_id)
            last = self._known[record.task_id].get(record.candidate.id)
            if last is None:
                fresh.append(dataclasses.replace(record, revision=max(1, record.revision)))
            elif is_found_wrong(record):
                fresh.append(dataclasses.replace(record, revision=max(1 + last, record.revision)))
        return self._store.add(fresh)
