"""Ranks of records of kernels over dynamic rows: by the time over all numbers of rows that the network computes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fleet_tune.base.domain import Record
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch
from policies.analysis.cpu.fewer_rows import CONSIDERED, TimesOverRows
from policies.search.task_records import as_matrix
from policies.space.sampling import is_valid


class RanksOverRows:
    """Ranks records of tasks. Tasks that have kernels over fewer rows are ranked by the time over all numbers of rows.

    Args:
        entries: the tasks of a network, with their sketches.
    """

    def __init__(self, entries: Sequence[SearchTask] = ()) -> None:
        self._sketches: dict[str, list[tuple[Sketch, TimesOverRows]]] = {}  # by task id
        for entry in entries:
            over_rows = [each for each in entry.sketches if each.fewer_rows]
            if over_rows:
                self._sketches[entry.task.id] = [(each, TimesOverRows(each, entry.abstraction)) for each in over_rows]

    def best(self, reader: RecordReader, task_id: str, excluded: Collection[str]) -> Record | None:
        """Return the best record of a task, except for the ids in ``excluded``. A kernel over fixed rows is ranked
        as in the store, a kernel over dynamic rows by its time over all numbers of rows. None if there is no record."""
        if task_id not in self._sketches:
            return reader.best(task_id, excluded)
        found = reader.bests(task_id, CONSIDERED, excluded)
        return found[int(np.argmin(self.secs(task_id, found)))] if found else None

    def secs(self, task_id: str, records: Sequence[Record]) -> list[float]:
        """Return the ranks of records of a task, in seconds: the ranks of the store, multiplied by
        :func:`policies.analysis.cpu.fewer_rows.time_over_rows` for kernels over dynamic rows."""
        secs = [record.measurement.rank_secs for record in records]
        for sketch, times in self._sketches.get(task_id, ()):
            # A store of other programs may have records of sketches that are not known here.
            mine = [
                at
                for at, record in enumerate(records)
                if record.candidate.sketch_id == sketch.id and len(record.candidate.decisions) == sketch.width
            ]
            matrix = as_matrix([records[at].candidate.decisions for at in mine], sketch.width)
            valid = is_valid(sketch, matrix)
            for at, time in zip(np.array(mine)[valid].tolist(), times.of(matrix[valid]).tolist(), strict=True):
                secs[at] *= time
        return secs
