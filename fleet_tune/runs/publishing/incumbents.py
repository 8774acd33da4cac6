"""The best records of a store for the tasks of a network. Records whose kernels turned out to be wrong in the network
are left out, and records that turned out to be the fastest in it are preferred."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.errors import UserError
from fleet_tune.base.records.stores.choices import keep_choices, kept_choices
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import ChosenInNetwork
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.publishing.over_rows import RanksOverRows
from policies.measuring.in_network import still_holds

RecordSupplier = Callable[[Sequence[str]], None]
"""Puts records for these task ids into the store, as far as possible."""


class Incumbents:
    """The best records of a store, as :class:`~fleet_tune.runs.publishing.record_admission.Candidates`.

    Blaming a record stores a revision of it, so that no later run chooses its candidate again.

    Args:
        path: the store, to which no other process writes meanwhile.
        supplier: finds records for tasks without one.
        warn: is called with a warning if something cannot be stored.
        run_id: the run of the revisions. If it is empty, a revision gets the run of the blamed record, so that both
            have the same origin.
        network: fingerprint of the network whose choices of kernels are read and stored. If it is empty, no earlier
            choices are read.
        entries: the tasks of the network, with their sketches.
    """

    def __init__(
        self,
        path: Path,
        supplier: RecordSupplier | None,
        warn: Callable[[str], None],
        run_id: str = "",
        network: str = "",
        entries: Sequence[SearchTask] = (),
    ) -> None:
        self.supplied: set[str] = set()
        """Ids of the tasks for which the supplier found a record."""
        self._network = network
        self._ranks = RanksOverRows(entries)
        with RecordReader(path) as reader:
            self._chosen = kept_choices(reader, network) if network else {}
        self._path = path
        self._supplier = supplier
        self._warn = warn
        self._run_id = run_id
        self._own_id = run_id or uuid.uuid4().hex[:12]  # makes the revisions' uids unique
        self._wrong: set[str] = set()  # ids of blamed candidates, needed if the store cannot be written

    def best(self, task_id: str) -> Record | None:
        """Return the record that was chosen by its time in the network, as long as the choice holds; else the best
        record by its time alone."""
        best = self.next_best(task_id, ())
        choice = self._chosen.get(task_id)
        if best is None or choice is None or choice.candidate_id in self._wrong:
            return best
        if not still_holds(choice.candidate_id, choice.compared, best.candidate.id):
            return best
        with RecordReader(self._path) as reader:
            return reader.best(task_id, candidate_id=choice.candidate_id) or best

    def chosen(self, record: Record) -> ChosenInNetwork | None:
        """Return the choice that made the record its task's :meth:`best`. None if it is the best by its time alone."""
        choice, best = self._chosen.get(record.task_id), self.next_best(record.task_id, ())
        if choice is None or choice.candidate_id != record.candidate.id:
            return None
        return None if best is None or best.candidate.id == record.candidate.id else choice

    def choose(self, choices: Sequence[ChosenInNetwork]) -> None:
        """Take these choices by the time in the network, and store them for later runs and compilations."""
        self._chosen.update({each.task_id: each for each in choices})
        try:
            with RecordStore(self._path) as store:
                keep_choices(store, self._network, choices)
        except UserError as error:  # a database of another user, or one that is not writable
            self._warn(f"which kernels are the fastest in the network could not be kept: {error}")

    def next_best(self, task_id: str, excluded: Sequence[Record]) -> Record | None:
        """Return the best record of the task that is not known to be wrong, other than the records in ``excluded``."""
        with RecordReader(self._path) as reader:
            return self._ranks.best(reader, task_id, self._wrong | {each.candidate.id for each in excluded})

    def rank_secs(self, record: Record) -> float:
        """Return the seconds by which :meth:`next_best` ranks a record."""
        return self._ranks.secs(record.task_id, [record])[0]

    def blame(self, record: Record, fault: Measurement) -> None:
        self._wrong.add(record.candidate.id)
        if fault.outcome is Outcome.BUILD_ERROR:
            return  # the trace may be of another version of fleet-tune, for which it is right
        try:
            with RecordReader(self._path) as reader:
                known = [
                    each.revision
                    for each in reader.records_of(record.task_id)
                    if each.candidate.id == record.candidate.id
                ]
            revision = max(known, default=0) + 1
            revised = Record(
                uid=f"{self._own_id}-{record.candidate.id}-{revision}",
                run_id=self._run_id or record.run_id,
                candidate=record.candidate,
                trace=record.trace,
                measurement=fault,
                device_id=record.device_id,
                unix_secs=time.time(),
                revision=revision,
            )
            with RecordStore(self._path) as store:
                store.append([revised])
        except UserError as error:  # a database of another user, or one that is not writable
            self._warn(f"a wrong kernel could not be marked in the records: {error}")

    def supply(self, task_ids: Sequence[str]) -> None:
        if self._supplier is None:
            return
        self._supplier(task_ids)
        self.supplied.update(each for each in task_ids if self.best(each) is not None)
