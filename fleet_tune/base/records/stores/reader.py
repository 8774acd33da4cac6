"""Reader of a record store. Any number of readers work beside the one writer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from fleet_tune.base.domain import DeviceClass, Outcome, Record, Task, Workload
from fleet_tune.base.errors import UnreadableRecordError
from fleet_tune.base.records.stores.codec import decode_record, readable_records
from fleet_tune.base.records.stores.database import is_unfinished
from fleet_tune.base.records.stores.database_reader import DatabaseReader
from fleet_tune.base.records.stores.device_history import DeviceHistory
from fleet_tune.base.records.stores.store_errors import translated
from fleet_tune.base.records.stores.stored_speeds import StoredSpeeds
from fleet_tune.base.records.stores.traces import unpack_trace

# The stored form of a record: seq, body, number of the sketch's trace, packed trace.
_RecordRow = tuple[int, bytes, int | None, bytes]

_PAGE_RECORDS = 1000
_OUTCOMES = frozenset(Outcome)
_HIGHEST_SEQ = (1 << 63) - 1


class RecordReader(DatabaseReader):
    """A read-only view of a record database, which may be written at the same time. It may be used from any thread.

    Every call sees what was committed when it began. Methods that return records skip those that cannot be decoded, and
    :meth:`unreadable` names them. Raises :class:`RecordStoreError` if there is no record database, or one of a newer
    schema.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.devices = DeviceHistory(self)
        """Stored changes of the devices."""
        self.speeds = StoredSpeeds(self)
        """Stored speeds of the devices."""
        self._sketch_traces: dict[int, bytes] = {}
        self._has_traces = False  # a database that has the table of traces keeps it

    def since(self, cursor: int, limit: int = _PAGE_RECORDS) -> list[Record]:
        """Return the first records with ``seq > cursor``, in order, at most ``limit``."""
        while rows := self._rows_after(cursor, limit):
            if records := self._readable(rows):
                return records
            cursor = rows[-1][0]
        return []

    def encoded_since(self, cursor: int, limit: int = _PAGE_RECORDS) -> list[tuple[int, bytes]]:
        """Return the first ``limit`` records with ``seq > cursor`` as ``seq`` and body, damaged ones included. The body
        lacks the trace if that is kept beside the record."""
        return self.rows("SELECT seq, body FROM records WHERE seq > ? ORDER BY seq LIMIT ?", cursor, limit)

    def __iter__(self) -> Iterator[Record]:
        """Yield all records in order of ``seq``, including those appended meanwhile."""
        cursor = 0
        while page := self.since(cursor):
            yield from page
            cursor = page[-1].seq

    def last_seq(self) -> int:
        """Return the ``seq`` of the last record that can be decoded; 0 if there is none."""
        before = _HIGHEST_SEQ
        while rows := self.rows("SELECT seq, body FROM records WHERE seq < ? ORDER BY seq DESC LIMIT 1", before):
            before = rows[0][0]
            if readable_records(rows):
                return int(before)
        return 0

    def best(self, task_id: str, excluded: Collection[str] = (), candidate_id: str | None = None) -> Record | None:
        """Return the incumbent: the verified record of the lowest
        :attr:`~fleet_tune.base.domain.Measurement.rank_secs`; of two equal ones the earlier one.

        ``excluded``: ids of excluded candidates; ``candidate_id``: id of the only allowed one. If one has revisions,
        only the last one counts. But a revision that ran and was not verified again does not replace an earlier
        verified record (older versions wrote such revisions for a device that had drifted).
        """
        return next(iter(self.bests(task_id, 1, excluded, candidate_id)), None)

    def bests(
        self, task_id: str, most: int, excluded: Collection[str] = (), candidate_id: str | None = None
    ) -> list[Record]:
        """Return the records of the ``most`` best candidates, one of each, the best first. See :meth:`best`."""
        revised = (
            " AND NOT EXISTS (SELECT 1 FROM records AS later WHERE later.workload = records.workload"
            " AND later.device_class = records.device_class AND later.candidate = records.candidate"
            " AND later.seq > records.seq AND later.revision > 0 AND (later.verified = 1 OR later.cost_secs IS NULL))"
        )
        rank = "rank_secs" if self.has_column("rank_secs") else "cost_secs"
        where = (
            f"WHERE workload = ? AND device_class = ? AND {rank} IS NOT NULL"
            f" AND verified = 1{revised if self.has_column('revision') else ''}"
            f"{' AND candidate NOT IN (' + ', '.join('?' * len(excluded)) + ')' if excluded else ''}"
            f"{'' if candidate_id is None else ' AND candidate = ?'}"
            f" ORDER BY {rank}, records.seq LIMIT ? OFFSET ?"
        )
        only = () if candidate_id is None else (candidate_id,)
        found: dict[str, Record] = {}
        at = 0
        while len(found) < most and (
            rows := self._record_rows(where, *split_task_id(task_id), *excluded, *only, most, at)
        ):
            for record in self._readable(rows):
                found.setdefault(record.candidate.id, record)
            at += most
        return list(found.values())[:most]

    def records_of(self, task_id: str) -> list[Record]:
        """Return all records of a task, in order of ``seq``."""
        where = "WHERE workload = ? AND device_class = ? ORDER BY records.seq"
        return self._readable(self._record_rows(where, *split_task_id(task_id)))

    def unreadable(self) -> list[str]:
        """Return the reason for each record and change that is skipped: ``record 7: ...``. This reads the whole
        store."""
        reasons: list[str] = []
        cursor = 0
        while rows := self._rows_after(cursor, _PAGE_RECORDS, reasons):
            self._readable(rows, reasons)
            cursor = rows[-1][0]
        return list(dict.fromkeys([*reasons, *self.devices.unreadable()]))

    def _rows_after(self, cursor: int, limit: int, reasons: list[str] | None = None) -> list[_RecordRow]:
        """Return the stored form of the first ``limit`` of the records with ``seq > cursor``, in order.

        For a damaged file SQLite may return rows whose ``seq`` goes back. They are skipped, and ``reasons`` names them.
        """
        ordered = []
        for row in self._record_rows("WHERE records.seq > ? ORDER BY records.seq LIMIT ?", cursor, limit):
            if row[0] > cursor:
                ordered.append(row)
                cursor = row[0]
            elif reasons is not None:
                reasons.append(f"record {row[0]}: it stands behind record {cursor}")
        return ordered

    def _record_rows(self, where: str, *values: str | int) -> list[_RecordRow]:
        """Return the stored form of the records that ``where`` chooses: a condition with an order."""
        self._has_traces = self._has_traces or self.has_table("traces")
        if not self._has_traces:
            return self.rows(f"SELECT records.seq, body, NULL, NULL FROM records {where}", *values)
        return self.rows(
            "SELECT records.seq, body, traces.sketch, packed FROM records"
            f" LEFT JOIN traces ON traces.seq = records.seq {where}",
            *values,
        )

    def _readable(self, rows: Iterable[_RecordRow], reasons: list[str] | None = None) -> list[Record]:
        """Return the records of the rows that can be decoded. ``reasons`` gets the reason for each of the others."""
        records = []
        for seq, body, sketch, packed in rows:
            try:
                trace = None if sketch is None else unpack_trace(packed, self._sketch_trace(sketch), f"record {seq}")
                records.append(decode_record(body, seq, trace))
            except UnreadableRecordError as error:
                if reasons is not None:
                    reasons.append(error.problem)
        return records

    def _sketch_trace(self, number: int) -> bytes:
        """Return the first trace of a sketch. It is empty if it is gone: nothing can be unpacked with it then."""
        if number not in self._sketch_traces:
            rows = self.rows("SELECT trace FROM sketch_traces WHERE id = ?", number)
            self._sketch_traces[number] = rows[0][0] if rows else b""
        return self._sketch_traces[number]

    def counts(self, task_id: str | None = None) -> dict[Outcome, int]:
        """Return the number of trials by outcome, of one task or of all tasks; outcomes without a trial are left
        out."""
        is_trial = "revision = 0" if self.has_column("revision") else "1"
        trials = f"SELECT outcome, count(*) FROM records WHERE {is_trial}"
        if task_id is None:
            rows = self.rows(f"{trials} GROUP BY outcome")
        else:
            rows = self.rows(
                f"{trials} AND workload = ? AND device_class = ? GROUP BY outcome", *split_task_id(task_id)
            )
        return {Outcome(outcome): count for outcome, count in rows if outcome in _OUTCOMES}

    def tried(self, after_seq: int = 0) -> set[str]:
        """Return the ids of the tasks with trials after ``after_seq``."""
        is_trial = "revision = 0" if self.has_column("revision") else "1"
        query = f"SELECT DISTINCT workload, device_class FROM records WHERE {is_trial} AND seq > ?"
        return {f"{workload}@{device_class}" for workload, device_class in self.rows(query, after_seq)}

    def workloads(self) -> list[Workload]:
        """Return the stored workloads, in order of their names."""
        rows = self.rows("SELECT hash, name, flop, module FROM workloads ORDER BY name, hash")
        return [Workload(*row) for row in rows]

    def tasks(self, only: Collection[str] | None = None) -> list[Task]:
        """Return the stored tasks in the order in which they were first stored. ``only``: those of these ids."""
        query = (
            "SELECT hash, name, flop, module, device_class, target, weight, tasks.rowid FROM tasks"
            " JOIN workloads ON hash = workload"
        )
        if only is None:
            rows = self.rows(query)
        else:
            rows = self.rows_in(f"{query} WHERE workload IN", {split_task_id(each)[0] for each in only})
            rows = [row for row in rows if f"{row[0]}@{row[4]}" in only]
        rows.sort(key=lambda row: row[7])
        return [Task(Workload(*row[:4]), DeviceClass(*row[4:6]), row[6]) for row in rows]

    def shown_secs(self, record: Record) -> float:
        """Return the seconds of a record as people see them in every view: its rank in seconds, at the speed at which
        its class is shown."""
        return record.measurement.rank_secs / self.speeds.shown().get(split_task_id(record.task_id)[1], 1.0)


def split_task_id(task_id: str) -> tuple[str, str]:
    """Return the workload hash and device class name of a task's id; see :attr:`fleet_tune.base.domain.Task.id`."""
    workload, _, device_class = task_id.partition("@")
    return workload, device_class


def check_store(path: Path) -> None:
    """Raise :class:`RecordStoreError` if a run could not use the file at ``path``. A missing file is no error, and
    neither is a database whose creation was interrupted: a run creates it anew."""
    with translated(path):
        if is_unfinished(path):
            return
    RecordReader(path).close()
