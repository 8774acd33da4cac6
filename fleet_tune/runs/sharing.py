"""What a run takes from the store that several runs share, and what it gives to it.

A run's own store in its output folder stays the log of the run. Before the tuning, what the shared store has of the
run's tasks is written there: one record for each candidate, as a revision, so that it is no trial of this run. Records
of this run are copied into the shared store now and then, and in the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet_tune.domain import Limits, Record, Task
from fleet_tune.records.origin import Effort, Origin
from fleet_tune.records.shared import SharedReader, copy_records, rescaled, shared_store
from fleet_tune.records.store import RecordReader, RecordStore, class_unit
from fleet_tune.results import FromStore, TaskProgress
from policies.runs.warm_start import covered, effort_of, share_of

# Candidates of a task that are taken: of one that is settled those that the network may be made of; of another one all
# that a search is likely to remember.
_TOP = 8
_MOST = 2000
SETTLED = "found in the store"
"""Why a task gets no trial."""
_LAST_GIVE_SECS = 2.0
"""How long a run that was interrupted waits for others who write to the store."""


@dataclass(frozen=True)
class Found:
    """What the shared store ``path`` has for a run. ``words``: by task id the records of its candidates, the best
    first, in the store's seconds; ``units``: the probe's seconds at these, by device class. ``settled``: the tasks that
    need no trial."""

    path: Path
    words: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()

    @property
    def reasons(self) -> dict[str, str]:
        """Why each settled task gets no trial."""
        return dict.fromkeys(self.settled, SETTLED)

    @property
    def summary(self) -> FromStore:
        """What people see of it."""
        records = sum(len(words) for words in self.words.values())
        known = sum(1 for words in self.words.values() if words)
        return FromStore(str(self.path), records, known, len(self.settled))


def look_up(path: Path, tasks: Sequence[Task], origins: Mapping[str, Origin], limits: Limits, own: Path) -> Found:
    """What the store at ``path`` has of the ``tasks`` of a run with these ``limits``, of just what its records depend
    on (``origins``, by device class). A task with trials in the run's ``own`` store is never settled: the user goes on
    with it. Raises :class:`RecordStoreError`."""
    if not path.exists():
        return Found(path)
    tried = _tried(own)
    asked = share_of(limits, max(1, len(tasks)))
    words: dict[str, Sequence[Record]] = {}
    settled: set[str] = set()
    with SharedReader(path) as reader:
        numbers = {name: reader.numbers_of(origin) for name, origin in origins.items()}
        spent: dict[str, list[tuple[float, float]]] = {}
        for effort, origin in reader.efforts():
            if origin == origins.get(effort.task_id.partition("@")[2]):
                spent.setdefault(effort.task_id, []).append((effort.secs, effort.trials))
        for task in tasks:
            of_class = numbers[task.device_class.name]
            best = reader.last_words(task.id, of_class, _TOP)
            has_best = bool(best) and best[0].measurement.verified
            if has_best and task.id not in tried and covered(asked, spent.get(task.id, ())):
                settled.add(task.id)
                words[task.id] = best
            else:
                words[task.id] = reader.last_words(task.id, of_class, _MOST)
        units = {name: secs for name in origins if (secs := reader.unit_of(class_unit(name))) is not None}
    return Found(path, words, units, frozenset(settled))


def take(
    found: Found, own: Path, run_id: str, origins: Mapping[str, Origin], devices: Mapping[str, Sequence[str]]
) -> None:
    """Write what was found into the run's ``own`` store, and what its own records depend on. ``devices``: the ids of
    the run's devices of each class, whose seconds are counted at the shared store's unit where they are counted at none
    yet. What the own store knows of a candidate is left as it is."""
    with RecordStore(own) as store:
        store.put_run(run_id, origins)
        factors: dict[str, float] = {}
        for name, secs in found.units.items():
            units = [store.unit(device_id, secs) for device_id in devices.get(name, ())]
            factors[name] = units[0] / secs if units else 1.0
        with SharedReader(own) as reader:
            fresh = [
                dataclasses.replace(
                    rescaled(word, factors.get(task_id.partition("@")[2], 1.0)), revision=max(1, word.revision)
                )
                for task_id, words in found.words.items()
                for known in [reader.candidates(task_id)]
                for word in words
                if word.candidate.id not in known
            ]
        store.append(fresh)


class Giving:
    """Copies the records of a run's ``own`` store to the ``shared`` one: what is new each time."""

    def __init__(self, own: Path, shared: Path) -> None:
        self._own = own
        self._shared = shared
        self._cursor = 0

    def give(self, *, hurry: bool = False) -> int:
        """How many records the shared store did not have. ``hurry``: others who write are hardly waited for. Raises
        :class:`RecordStoreError`."""
        with SharedReader(self._own) as reader, shared_store(self._shared, _LAST_GIVE_SECS if hurry else None) as store:
            copied = copy_records(reader, store, self._cursor)
        self._cursor = copied.cursor
        return copied.records


def note_efforts(own: Path, run_id: str, tasks: Sequence[TaskProgress], elapsed_secs: float, new_trials: int) -> None:
    """Write into the run's ``own`` store, which nobody else writes now, what it has spent on each of its ``tasks`` that
    it tuned."""
    efforts = [
        Effort(task.task_id, run_id, *effort_of(elapsed_secs, new_trials, len(tasks), task.finish_reason))
        for task in tasks
        if task.described and task.finish_reason != SETTLED
    ]
    with RecordStore(own) as store:
        store.put_efforts(efforts)


def _tried(own: Path) -> set[str]:
    """The tasks with trials in a run's own store."""
    if not own.exists():
        return set()
    with RecordReader(own) as reader:
        return {task.id for task in reader.tasks() if reader.counts(task.id)}
