"""The best records of a store's tasks for a network: without those whose kernels turned out to be wrong in it, and with
those that turned out to be the fastest in it."""

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
from fleet_tune.base.results import ChosenInPlace
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.publishing.over_rows import RanksOverRows
from policies.measuring.in_network import still_holds

RecordSupplier = Callable[[Sequence[str]], None]
"""Puts records of these tasks into the store, as far as possible."""


class Incumbents:
    """The best records of a store, as :class:`~fleet_tune.runs.publishing.record_admission.Candidates`.

    A record that is blamed is stored as a revision, so that no later run chooses it again.

    Args:
        path: the store, which nobody else writes meanwhile.
        supplier: finds records for tasks without one.
        warn: is told what cannot be stored.
        run_id: the run of the revisions; empty for the run of what is blamed, so that they have the same origin.
        network: fingerprint of the network in which kernels were chosen, and are; empty for none.
        entries: its tasks, with their sketches.
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
        self._own_id = run_id or uuid.uuid4().hex[:12]  # of the revisions' ids: that run may have given some of its own
        self._wrong: set[str] = set()  # ids of candidates, also where the store cannot be written

    def best(self, task_id: str) -> Record | None:
        """The record that was chosen in the network, as long as that holds; else the best alone."""
        best = self.next_best(task_id, ())
        choice = self._chosen.get(task_id)
        if best is None or choice is None or choice.candidate_id in self._wrong:
            return best
        if not still_holds(choice.candidate_id, choice.compared, best.candidate.id):
            return best
        with RecordReader(self._path) as reader:
            return reader.best(task_id, candidate_id=choice.candidate_id) or best

    def chosen(self, record: Record) -> ChosenInPlace | None:
        """Return the choice that made the record its task's :meth:`best`; None for the best alone."""
        choice, best = self._chosen.get(record.task_id), self.next_best(record.task_id, ())
        if choice is None or choice.candidate_id != record.candidate.id:
            return None
        return None if best is None or best.candidate.id == record.candidate.id else choice

    def choose(self, choices: Sequence[ChosenInPlace]) -> None:
        """These were chosen in the network; kept for the runs and compilations that follow."""
        self._chosen.update({each.task_id: each for each in choices})
        try:
            with RecordStore(self._path) as store:
                keep_choices(store, self._network, choices)
        except UserError as error:  # somebody else's database, or one that cannot be written
            self._warn(f"which kernels are the fastest in the network could not be kept: {error}")

    def next_best(self, task_id: str, but: Sequence[Record]) -> Record | None:
        """The best record of the task that is not known to be wrong, beside these."""
        with RecordReader(self._path) as reader:
            return self._ranks.best(reader, task_id, self._wrong | {each.candidate.id for each in but})

    def rank_secs(self, record: Record) -> float:
        """The seconds by which :meth:`next_best` ranks a record."""
        return self._ranks.secs(record.task_id, [record])[0]

    def blame(self, record: Record, fault: Measurement) -> None:
        self._wrong.add(record.candidate.id)
        if fault.outcome is Outcome.BUILD_ERROR:
            return  # a trace of another version does not fit: there it was right
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
        except UserError as error:  # somebody else's database, or one that cannot be written
            self._warn(f"a wrong kernel could not be marked in the records: {error}")

    def supply(self, task_ids: Sequence[str]) -> None:
        if self._supplier is None:
            return
        self._supplier(task_ids)
        self.supplied.update(each for each in task_ids if self.best(each) is not None)
