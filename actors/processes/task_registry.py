"""The described tasks of a run, for actors of this host that Ray may restart at any time."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path

from fleet_tune.base.domain import Record
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.search_task import SearchTask


class TaskRegistry:
    """A folder with a pickle file for each described task. Only this user may write there. The registry is passed by
    value.

    The session adds a task before it tells any actor of the task. An actor that gets an unknown task id, or that was
    restarted, reads the task from here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def open(self) -> None:
        """Make the folder without any task, even if a killed run has left tasks there."""
        self.close()
        self._folder.mkdir(parents=True)

    def add(self, entry: SearchTask) -> None:
        """Write the file of a task, and the file of its prior if no other task of the run has the same prior."""
        prior = self._folder / _digest(entry.prior)
        if not prior.exists():
            write_atomically(prior, entry.prior, durable=False)
        packed = pickle.dumps((dataclasses.replace(entry, prior=b""), prior.name))
        write_atomically(self._path(entry.task.id), zlib.compress(packed, 1), durable=False)

    def find(self, task_id: str) -> SearchTask | None:
        """The task, or None while it is not described."""
        try:
            packed = self._path(task_id).read_bytes()
        except FileNotFoundError:
            return None
        entry: SearchTask
        entry, prior = pickle.loads(zlib.decompress(packed))
        return dataclasses.replace(entry, prior=(self._folder / prior).read_bytes())

    def close(self) -> None:
        """Remove the folder: no actor reads it any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, task_id: str) -> Path:
        return self._folder / f"{_digest(task_id.encode())}.task"


class BufferedRecords:
    """Records (from earlier runs) of tasks that are still being described."""

    def __init__(self) -> None:
        self._records: dict[str, list[Record]] = {}

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The ids of the tasks of these records."""
        return tuple(self._records)

    def keep(self, records: Iterable[Record]) -> None:
        """Keep these records without their traces, which no search reads."""
        for record in records:
            self._records.setdefault(record.task_id, []).append(dataclasses.replace(record, trace=""))

    def take(self, task_id: str) -> list[Record]:
        """Remove the records of a task from here, and return them."""
        return self._records.pop(task_id, [])


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
