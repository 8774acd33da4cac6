"""Exchange of records between a run's own store and the store that several runs share.

The store in the output folder of a run is the log of the run. Records from the shared store are written there as
revisions, so that they do not count as trials of the run. Records of the run are copied to the shared store during the
run and at its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fleet_tune.base.domain import Record
from fleet_tune.base.records.sharing.shared import (
    SharedReader,
    class_of,
    copy_records,
    is_found_wrong,
    last_word,
    rescaled,
    shared_store,
)
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.store import RecordStore, class_unit
from fleet_tune.runs.shared_store.lookup import StoreLookup

_LAST_GIVE_SECS = 2.0
"""Seconds that an interrupted run waits for other writers of the store, and copies records, before it leaves the
rest."""


class RecordSink(Protocol):
    """Writes into the store of a run: a :class:`RecordStore`, or the recorder of a run that tunes."""

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        """See :meth:`RecordStore.put_run`."""

    def unit(self, name: str, secs: float) -> float:
        """See :meth:`RecordStore.unit`."""

    def append(self, records: Sequence[Record]) -> list[int]:
        """See :meth:`RecordStore.append`."""


def take(
    found: StoreLookup,
    own: Path,
    store: RecordSink,
    origins: Mapping[str, Origin],
    devices: Mapping[str, Sequence[str]],
) -> None:
    """Write found records into the store of a run. A candidate that the store already has stays as it is, unless the
    found record says that it is wrong.

    Args:
        found: the result of :func:`fleet_tune.runs.shared_store.lookup.look_up`.
        own: the file of the store.
        store: writes into it.
        origins: the origin of the records of each device class, as it was for the look-up.
        devices: ids of the devices of each class. A device without a unit gets the unit of the shared store.
    """
    for run_id, name in sorted(
        {(word.run_id, class_of(task)) for task, words in found.records.items() for word in words}
    ):
        store.put_run(run_id, {name: origins[name]})
    factors: dict[str, float] = {}
    for name, secs in found.units.items():
        units = [store.unit(device_id, secs) for device_id in devices.get(name, ())]
        store.unit(class_unit(name), units[0] if units else secs)  # for devices that join later
        factors[name] = units[0] / secs if units else 1.0
    with SharedReader(own) as reader:
        known = {task_id: reader.revisions(task_id) for task_id in found.records}
    fresh = []
    for task_id, words in found.records.items():
        for word in words:
            last = known[task_id].get(word.candidate.id)
            if last is None or is_found_wrong(word):  # a revision replaces the earlier records
                scaled = rescaled(word, factors.get(class_of(task_id), 1.0))
                fresh.append(dataclasses.replace(scaled, revision=max(1 + (last or 0), word.revision)))
    store.append(fresh)


def take_speeds(found: StoreLookup, store: RecordStore, devices: Mapping[str, Sequence[str]]) -> None:
    """Show the seconds of a run that measures nothing at the speeds of the shared store. A class whose speed the run's
    own store knows keeps it. For the arguments see :func:`take`, which must be called before."""
    with SharedReader(store.path) as reader:
        own = reader.speeds.shown()
    for name, speed in found.shown_speeds.items():
        shared_secs, device_id = found.units.get(name), next(iter(devices.get(name, ())), None)
        if shared_secs is not None and device_id is not None and name not in own:
            store.show_at(name, speed * store.unit(device_id, shared_secs) / shared_secs)


def _give_speeds(own: SharedReader, shared: RecordStore) -> None:
    """Set the speeds at which the shared store shows seconds to the speeds of a run that has measured."""
    units = own.class_units()
    for name, speed in own.speeds.shown().items():
        own_secs = units.get(class_unit(name))
        if own_secs is not None:
            shared.show_at(name, speed * shared.unit(class_unit(name), own_secs) / own_secs)


class StoreUploader:
    """Copies new records from the store of a run to the shared store."""

    def __init__(self, own: Path, shared: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._own = own
        self._shared = shared
        self._cursor = 0

    def give(self, *, hurry: bool = False, with_efforts: bool = True) -> int:
        """Copy new records, and return the number of records that the shared store did not have.

        Args:
            hurry: wait two seconds at most for other writers, and stop copying two seconds after the start. The next
                run in this folder copies the rest.
            with_efforts: copy the efforts too, which are known at the end of a run.

        Raises :class:`RecordStoreError`.
        """
        deadline = self._clock() + _LAST_GIVE_SECS if hurry else math.inf
        with SharedReader(self._own) as reader, shared_store(self._shared, _LAST_GIVE_SECS if hurry else None) as store:
            is_late = lambda: self._clock() > deadline  # noqa: E731
            copied = copy_records(reader, store, self._cursor, is_late, with_efforts=with_efforts)
            _give_speeds(reader, store)
        self._cursor = copied.cursor
        return copied.records


class StoreSubscription:
    """Yields the records that other runs add to the shared store during a run, each once: so two runs that tune for the
    same class do not measure the same candidates. Must be made before the run looks up its tasks in the store. Raises
    :class:`RecordStoreError`."""

    def __init__(self, shared: Path, run_id: str) -> None:
        self._shared = shared
        self._run_id = run_id
        self._cursor = 0
        if shared.exists():
            with SharedReader(shared) as reader:
                self._cursor = reader.last_seq()

    @contextlib.contextmanager
    def new(self, tasks: Collection[str], origins: Mapping[str, Origin]) -> Iterator[StoreLookup]:
        """Yield the new records of these task ids that have the origin of their device class. If the block fails, the
        next call yields them again. Raises :class:`RecordStoreError`."""
        cursor = self._cursor
        words: dict[str, dict[str, Record]] = {}
        with SharedReader(self._shared) as reader:
            of_runs: dict[tuple[str, str], Origin] = {}
            for page in reader.pages(cursor):
                cursor = page[-1].seq
                of_runs |= reader.run_origins({each.run_id for each in page})
                for record in page:
                    name = class_of(record.task_id)
                    if record.task_id not in tasks or record.run_id == self._run_id or name not in origins:
                        continue
                    if of_runs.get((record.run_id, name)) != origins[name]:
                        continue
                    of_task = words.setdefault(record.task_id, {})
                    heard = [each for each in (of_task.get(record.candidate.id), record) if each is not None]
                    said = last_word(heard)
                    if said is not None:
                        of_task[record.candidate.id] = said
            units = {name: secs for name in origins if (secs := reader.speeds.unit_of(class_unit(name))) is not None}
        yield StoreLookup(self._shared, {task: tuple(each.values()) for task, each in words.items()}, units)
        self._cursor = cursor
