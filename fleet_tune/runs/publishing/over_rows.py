"""Records of kernels over dynamic rows, ranked by the time of all numbers of rows that the network computes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fleet_tune.base.domain import Record
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.search_task import SearchTask
from policies.analysis.cpu.fewer_rows import time_over_rows
from policies.space.sampling import is_valid

_CONSIDERED = 16
"""The best records for the most rows, among which the best for all is looked for."""


class RanksOverRows:
    """The ranks of records of those tasks that have kernels over fewer rows.

    Args:
        entries: the tasks of a network, with their sketches.
    """

    def __init__(self, entries: Sequence[SearchTask] = ()) -> None:
        self._entries = {each.task.id: each for each in entries if any(sketch.fewer_rows for sketch in each.sketches)}

    def best(self, reader: RecordReader, task_id: str, but: Collection[str]) -> Record | None:
        """Return the best record of a task, without candidates of these ids: of a kernel of fixed rows as the store
        ranks them, else the one that takes the least time over all numbers of rows."""
        best = reader.best(task_id, but)
        if task_id not in self._entries or best is None:
            return best
        found = [best]
        while len(found) < _CONSIDERED:
            other = reader.best(task_id, {*but, *(each.candidate.id for each in found)})
            if other is None:
                break
            found.append(other)
        return min(found, key=self._secs)

    def _secs(self, record: Record) -> float:
        """The rank of a record, in seconds, times :func:`policies.analysis.cpu.fewer_rows.time_over_rows`."""
        entry, candidate = self._entries[record.task_id], record.candidate
        sketch = next((each for each in entry.sketches if each.id == candidate.sketch_id), None)
        # A store that others write may have records of sketches that are not known here.
        if sketch is None or len(candidate.decisions) != sketch.width:
            return record.measurement.rank_secs
        decisions = np.array([candidate.decisions], dtype=np.int64)
        if not is_valid(sketch, decisions)[0]:
            return record.measurement.rank_secs
        return record.measurement.rank_secs * float(time_over_rows(sketch, decisions, entry.abstraction)[0])
