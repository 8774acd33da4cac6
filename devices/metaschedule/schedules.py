"""The schedules of a MetaSchedule database as records of ours.

A record whose trace follows one of our sketches becomes a candidate of that sketch. A trace that follows none becomes a
sketch of its own, which a run uses in addition to the sketches of the rules
(:attr:`fleet_tune.base.domain.Task.imported`): its candidates are built, measured and searched like all others.
MetaSchedule compares no outputs, and does not store the processor, version and number of threads of a measurement. So
its records get another origin than those of any run. A run therefore measures the best of them first, and trusts only
its own measurements.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from devices.metaschedule.files import RECORDS, DatabaseFiles, DatabaseRecord, class_written
from devices.metaschedule.learning import measurement_of
from devices.metaschedule.trace_matcher import TraceMatcher, before_postprocessing
from devices.targets import default_device_class_name
from fleet_tune.base.domain import Candidate, DeviceClass, Record, Task
from fleet_tune.base.records.datasets.sources import BY_METASCHEDULE
from fleet_tune.base.records.stores.origin import MEASURED_BY, Effort, Origin
from fleet_tune.base.sketch import MOST_IMPORTED

_PAGE_RECORDS = 1000


class DatabaseSchedules:
    """The records of a database, as a source of :func:`fleet_tune.base.records.sharing.shared.copy_records`.

    ``device_class``: name of the device class on which the database was measured. If empty, the name that we stored in
    the database is used, or else the default name of the target. Raises :class:`TransferError` if a file cannot be
    read.
    """

    def __init__(self, folder: Path, device_class: str = "") -> None:
        files = DatabaseFiles(folder)
        device_class = device_class or class_written(folder)
        grouped: dict[str, tuple[Task, list[DatabaseRecord]]] = {}
        for line in files.records():
            name = device_class or default_device_class_name(line.target)
            task = Task(line.workload, DeviceClass(name, line.target))
            grouped.setdefault(task.id, (task, []))[1].append(line)
        #: Lines that were skipped, each with file, number and reason.
        self.skipped = files.skipped
        #: Number of records that follow none of our sketches, but an imported one.
        self.own_sketches = 0
        self._tasks = [task for task, _ in grouped.values()]
        unix_secs = (folder / RECORDS).stat().st_mtime
        self._records: list[Record] = []
        known: set[str] = set()
        for task, lines in grouped.values():
            for line, candidate in self._candidates(task, lines):
                record = _record(line, candidate, unix_secs, seq=len(known) + 1)
                if record.uid not in known:  # we write the best record of a task twice
                    known.add(record.uid)
                    self._records.append(record)

    def tasks(self, only: Collection[str] | None = None) -> list[Task]:
        """Return the tasks of the database. ``only``: ids of the tasks to return; None for all."""
        return [task for task in self._tasks if only is None or task.id in only]

    def run_origins(self, only: Collection[str] | None = None) -> dict[tuple[str, str], Origin]:
        """Return the origin of the records, by run and device class. Only the target is known. ``only``: the runs to
        return; None for all."""
        if only is not None and BY_METASCHEDULE not in only:
            return {}
        versions = {MEASURED_BY: "MetaSchedule"}
        classes = [task.device_class for task in self._tasks]
        return {(BY_METASCHEDULE, each.name): Origin(each.target, "", 0, versions) for each in classes}

    def efforts(self) -> list[tuple[Effort, Origin]]:
        """Return the effort for each task: each record counts as a trial."""
        origins = self.run_origins()
        trials = Counter(record.task_id for record in self._records)
        efforts = [Effort(task_id, BY_METASCHEDULE, 0.0, float(count)) for task_id, count in trials.items()]
        return [(each, origins[BY_METASCHEDULE, each.task_id.partition("@")[2]]) for each in efforts]

    def unit_secs(self, device_id: str, device_class: str) -> float | None:  # noqa: ARG002 - of a protocol
        """Return None: the seconds of the database are not relative to a probe."""
        return None

    def pages(self, cursor: int = 0) -> Iterator[list[Record]]:
        """Yield the records in pages, from position ``cursor`` on. The ``seq`` of a record follows from its
        position."""
        for start in range(cursor, len(self._records), _PAGE_RECORDS):
            yield self._records[start : start + _PAGE_RECORDS]

    def _candidates(self, task: Task, lines: list[DatabaseRecord]) -> Iterator[tuple[DatabaseRecord, Candidate]]:
        """Yield the records of a task with their candidates, the fastest first. Records without a candidate are skipped
        and noted."""
        lines = sorted(lines, key=lambda line: (statistics.median(line.run_secs), line.number))
        recognising = TraceMatcher(task)
        found = [(line, recognising.candidate(line.trace)) for line in lines]
        strange = [line for line, candidate in found if candidate is None and recognising.fits(line.trace)]
        if strange:
            more = recognising.with_traces(_sketches_of(strange))
            again = {line.number: more.candidate(line.trace) for line in strange}
            found = [(line, candidate or again.get(line.number)) for line, candidate in found]
            self.own_sketches += sum(1 for candidate in again.values() if candidate is not None)
        for line, candidate in found:
            if candidate is not None:
                yield line, candidate
            else:
                fits = "follows no sketch that is used" if line in strange else "does not fit its workload"
                self.skipped.append(f"{RECORDS} line {line.number}: its trace {fits}")


def _sketches_of(lines: Sequence[DatabaseRecord]) -> list[Any]:
    """Return one trace for each of the first :data:`MOST_IMPORTED` different sketches that these lines follow."""
    first: dict[str, Any] = {}
    for line in lines:
        first.setdefault(json.dumps(before_postprocessing(line.trace)[0]), line.trace)
    return list(first.values())[:MOST_IMPORTED]


def _record(line: DatabaseRecord, candidate: Candidate, unix_secs: float, seq: int) -> Record:
    trace = json.dumps(line.trace)
    text = f"{candidate.id}|{trace}|{line.run_secs}"
    uid = f"{BY_METASCHEDULE}-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
    measured = measurement_of(line.run_secs)
    return Record(uid, BY_METASCHEDULE, candidate, trace, measured, BY_METASCHEDULE, unix_secs, seq)
