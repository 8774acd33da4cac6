"""What a run takes from the store that several runs share, and what it gives to it.

A run's own store in its output folder stays the log of the run. Before the tuning, what the shared store has of the
run's tasks is written there: one record for each candidate, as a revision, so that it is no trial of this run. Records
of this run are copied into the shared store now and then, and in the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fleet_tune.base.domain import Limits, Outcome, Record, Task
from fleet_tune.base.records.datasets.sources import BY_METASCHEDULE
from fleet_tune.base.records.sharing.shared import (
    SharedReader,
    class_of,
    copy_records,
    is_found_wrong,
    last_word,
    rescaled,
    shared_store,
)
from fleet_tune.base.records.stores.origin import Effort, Origin
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore, class_unit
from fleet_tune.base.results import FromStore, TaskProgress
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.reusing.shipped import Seed, Shipped
from fleet_tune.runs.reusing.store_prior import MOST_WORKLOADS, StorePrior
from policies.runs.warm_start import Share, covered, effort_of, share_of
from policies.search.adapting import seeds
from policies.search.bandits import kind_of_name

# Candidates of a task that are taken: of one that is settled those that the network may be made of; of another one all
# that a search is likely to remember.
_TOP = 8
_MOST = 2000
# Candidates that confirm what other versions have found; what a search begins with, of how many similar tasks.
_CONFIRMED = 3
_OF_SIMILAR = 2
_SIMILAR = 3
_MOST_SEEDS = 8
SETTLED = "found in the store"
"""Why a task gets no trial."""
_LAST_GIVE_SECS = 2.0
"""How long a run that was interrupted waits for others who write to the store, and begins another page of records."""


@dataclass(frozen=True)
class StoreLookup:
    """What the shared store ``path`` has for a run. ``words``: by task id the records of its candidates, the best
    first, in the store's seconds; ``units``: the probe's seconds at these, by device class. ``settled``: the tasks that
    need no trial. ``seeds``: by task id traces with their decisions that the search of others begins with;
    ``confirmed``: those of them of the same workload are tried, and if one is right that is all. ``imported``: by task
    id its sketches that no rule makes, see :attr:`fleet_tune.base.domain.Task.imported`. ``shipped``: those of the
    seeded tasks whose seeds come with fleet-tune. ``similar``: by id of each task that is not settled those of the
    nearest similar ones, ``lessons``: what cost models learn from them. ``shown``: what people call the store, empty
    for its path."""

    path: Path
    words: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()
    seeds: Mapping[str, Sequence[Seed]] = field(default_factory=dict)
    confirmed: frozenset[str] = frozenset()
    imported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shipped: frozenset[str] = frozenset()
    similar: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lessons: StorePrior = field(default_factory=StorePrior)
    shown: str = ""

    def seeded(self, entry: SearchTask) -> SearchTask:
        """A task that is described with the candidates that its search begins with."""
        lanes = entry.abstraction.lanes
        made = seeds(self.seeds.get(entry.task.id, ()), entry.sketches, lanes)[:_MOST_SEEDS]
        enough = len(made) if entry.task.id in self.confirmed else 0
        return dataclasses.replace(entry, seeds=tuple(made), enough=enough) if made else entry

    def untaught(self, entries: Sequence[SearchTask]) -> list[SearchTask]:
        """Those of these tasks whose cost models learn nothing from the store."""
        return [entry for entry in entries if entry.task.id not in self.lessons.learners]

    def with_class(self, other: StoreLookup) -> StoreLookup:
        """Together with what was found for a device class that joined later."""
        return dataclasses.replace(
            self,
            words={**self.words, **other.words},
            units={**self.units, **other.units},
            settled=self.settled | other.settled,
            seeds={**self.seeds, **other.seeds},
            confirmed=self.confirmed | other.confirmed,
            imported={**self.imported, **other.imported},
            shipped=self.shipped | other.shipped,
            similar={**self.similar, **other.similar},
            lessons=self.lessons.with_class(other.lessons),
        )

    @property
    def reasons(self) -> dict[str, str]:
        """Why each settled task gets no trial."""
        return dict.fromkeys(self.settled, SETTLED)

    @property
    def summary(self) -> FromStore:
        """What people see of it."""
        records = sum(len(words) for words in self.words.values())
        known = sum(1 for words in self.words.values() if words)
        seeded = self.seeds.keys() - self.confirmed - self.shipped
        return FromStore(
            self.shown or str(self.path),
            records,
            known,
            len(self.settled),
            len(self.confirmed - self.shipped),
            len(seeded),
            len(self.shipped),
            len(self.confirmed & self.shipped),
            len(self.lessons.learners),
            self.lessons.candidates,
        )


def look_up(
    path: Path,
    tasks: Sequence[Task],
    origins: Mapping[str, Origin],
    limits: Limits,
    own: Path,
    shipped: Shipped | None = None,
) -> StoreLookup:
    """What the store at ``path`` has of the ``tasks`` of a run with these ``limits``, of just what its records depend
    on (``origins``, by device class), and what is ``shipped`` of those of which it has nothing. A task with trials in
    the run's ``own`` store is never settled: the user goes on with it. Raises :class:`RecordStoreError`."""
    tried = tried_in(own)
    asked = share_of(limits, max(1, len(tasks)))
    if not path.exists():
        return _with_shipped(StoreLookup(path), tasks, origins, asked, tried, shipped)
    words: dict[str, Sequence[Record]] = {}
    settled: set[str] = set()
    confirmed: set[str] = set()
    found_seeds: dict[str, Sequence[Seed]] = {}
    similar: dict[str, Sequence[str]] = {}
    known: set[str] = set()  # of which there are verified records, whatever they depend on
    imported = _imported_in(own)
    with SharedReader(path) as reader:
        imported |= reader.imported_sketches()
        numbers = {name: reader.numbers_of(origin) for name, origin in origins.items()}
        spent: dict[str, list[tuple[float, float]]] = {}
        spent_elsewhere: dict[str, list[tuple[float, float]]] = {}
        for effort, origin in reader.efforts():
            here = origin == origins.get(class_of(effort.task_id))
            (spent if here else spent_elsewhere).setdefault(effort.task_id, []).append((effort.secs, effort.trials))
        elsewhere = _Elsewhere(reader)
        for task in tasks:
            of_class = numbers[task.device_class.name]
            best = reader.last_words(task.id, of_class, _TOP)
            wrong = reader.found_wrong(task.id, of_class)
            has_best = bool(best) and best[0].measurement.verified
            if has_best and task.id not in tried and covered(asked, spent.get(task.id, ())):
                settled.add(task.id)
                words[task.id] = _together(best, wrong)
                continue
            similar[task.id] = elsewhere.similar(task)
            words[task.id] = _together(reader.last_words(task.id, of_class, _MOST), wrong)
            if has_best:
                known.add(task.id)
                continue
            own_seeds = elsewhere.of_task(task.id)
            if own_seeds:
                known.add(task.id)
            if own_seeds and task.id not in tried and covered(asked, spent_elsewhere.get(task.id, ())):
                confirmed.add(task.id)
                found_seeds[task.id] = own_seeds
            elif all_seeds := [*own_seeds, *elsewhere.of_similar(task)]:
                found_seeds[task.id] = all_seeds
        units = {name: secs for name in origins if (secs := reader.unit_of(class_unit(name))) is not None}
    found = StoreLookup(
        path, words, units, frozenset(settled), found_seeds, frozenset(confirmed), imported, similar=similar
    )
    others = [task for task in tasks if task.id not in known | settled]
    return _with_shipped(found, others, origins, asked, tried, shipped)


def _with_shipped(
    found: StoreLookup,
    tasks: Sequence[Task],
    origins: Mapping[str, Origin],
    asked: Share,
    tried: Collection[str],
    shipped: Shipped | None,
) -> StoreLookup:
    """The same with what is shipped of these tasks, of which the store has no verified record: before what it has of
    similar ones, or after that where only similar ones are shipped."""
    if shipped is None:
        return found
    made: dict[str, Sequence[Seed]] = {}
    confirmed: set[str] = set()
    for task in tasks:
        origin = origins.get(task.device_class.name)
        if origin is None:
            continue
        here = shipped.here(task, origin)
        if here and task.id not in tried and shipped.suffices(task, origin, asked):
            confirmed.add(task.id)
            made[task.id] = here
        elif same := here or shipped.elsewhere(task, origin):
            made[task.id] = [*same, *found.seeds.get(task.id, ())]
        elif similar := shipped.of_similar(task, origin):
            made[task.id] = [*found.seeds.get(task.id, ()), *similar]
    return dataclasses.replace(
        found,
        seeds={**found.seeds, **made},
        confirmed=found.confirmed | confirmed,
        shipped=frozenset(made),
    )


def _together(words: Sequence[Record], wrong: Sequence[Record]) -> list[Record]:
    """Words of a task, and what of it was found wrong, each candidate once."""
    known = {word.candidate.id for word in words}
    return [*words, *(word for word in wrong if word.candidate.id not in known)]


def _imported_in(own: Path) -> dict[str, tuple[str, ...]]:
    """The sketches that no rule makes of which a run's own store has records: it goes on with them."""
    if not own.exists():
        return {}
    with SharedReader(own) as reader:
        return reader.imported_sketches()


def _is_claimed(word: Record) -> bool:
    """Whether a record is of a candidate that ran elsewhere, where nobody compares outputs."""
    return word.run_id == BY_METASCHEDULE and word.measurement.outcome is Outcome.OK


class _Elsewhere:
    """What a store has of tasks whatever it depends on: as a beginning."""

    def __init__(self, reader: SharedReader) -> None:
        self._reader = reader
        self._origins = frozenset(reader.origins())
        self._sizes: dict[str, list[tuple[str, str, float]]] = {}  # by device class

    def of_task(self, task_id: str, most: int = _CONFIRMED) -> list[Seed]:
        """The best candidates of a task."""
        words = self._reader.last_words(task_id, self._origins, most)
        usable = [word for word in words if word.trace and (word.measurement.verified or _is_claimed(word))]
        return [(word.candidate.sketch_id, word.trace, word.candidate.decisions) for word in usable]

    def similar(self, task: Task) -> list[str]:
        """The ids of the tasks of the same operators and class, those before others whose number of operations is
        nearest, as many as there is something to learn from."""
        name, workload = task.device_class.name, task.workload
        if name not in self._sizes:
            self._sizes[name] = self._reader.workload_sizes(name)
        kind = kind_of_name(workload.name)
        similar = [each for each in self._sizes[name] if each[0] != workload.hash and kind_of_name(each[1]) == kind]
        similar.sort(key=lambda each: abs(math.log((each[2] + 1) / (workload.flop + 1))))
        return [f"{hash_}@{name}" for hash_, _, _ in similar[:MOST_WORKLOADS]]

    def of_similar(self, task: Task) -> list[Seed]:
        """The best of the nearest similar tasks."""
        return [seed for task_id in self.similar(task)[:_SIMILAR] for seed in self.of_task(task_id, _OF_SIMILAR)]


class Writer(Protocol):
    """What writes into a run's own store: a :class:`RecordStore`, or whoever does it for a run that goes on."""

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        """See :meth:`RecordStore.put_run`."""

    def unit(self, name: str, secs: float) -> float:
        """See :meth:`RecordStore.unit`."""

    def append(self, records: Sequence[Record]) -> list[int]:
        """See :meth:`RecordStore.append`."""


def take(
    found: StoreLookup, own: Path, store: Writer, origins: Mapping[str, Origin], devices: Mapping[str, Sequence[str]]
) -> None:
    """Write what was found into the run's ``own`` store, by ``store``, with what it depends on: the run's ``origins``,
    which :func:`look_up` was asked for. ``devices``: the ids of the run's devices of each class, whose seconds are
    counted at the shared store's unit where they are counted at none yet. What the own store knows of a candidate is
    left as it is, unless it was found wrong since."""
    for run_id, name in sorted(
        {(word.run_id, class_of(task)) for task, words in found.words.items() for word in words}
    ):
        store.put_run(run_id, {name: origins[name]})
    factors: dict[str, float] = {}
    for name, secs in found.units.items():
        units = [store.unit(device_id, secs) for device_id in devices.get(name, ())]
        factors[name] = units[0] / secs if units else 1.0
    with SharedReader(own) as reader:
        known = {task_id: reader.revisions(task_id) for task_id in found.words}
    fresh = []
    for task_id, words in found.words.items():
        for word in words:
            last = known[task_id].get(word.candidate.id)
            if last is None or is_found_wrong(word):  # a revision takes the place of those before it
                scaled = rescaled(word, factors.get(class_of(task_id), 1.0))
                fresh.append(dataclasses.replace(scaled, revision=max(1 + (last or 0), word.revision)))
    store.append(fresh)


class StoreUploader:
    """Copies the records of a run's ``own`` store to the ``shared`` one: what is new each time."""

    def __init__(self, own: Path, shared: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._own = own
        self._shared = shared
        self._cursor = 0

    def give(self, *, hurry: bool = False, with_efforts: bool = True) -> int:
        """How many records the shared store did not have. ``hurry``: others who write are hardly waited for, and what
        takes longer is left to the next run in this folder, which begins at its first record. ``with_efforts``: what
        was spent, too, which is known at the end. Raises :class:`RecordStoreError`."""
        deadline = self._clock() + _LAST_GIVE_SECS if hurry else math.inf
        with SharedReader(self._own) as reader, shared_store(self._shared, _LAST_GIVE_SECS if hurry else None) as store:
            is_late = lambda: self._clock() > deadline  # noqa: E731
            copied = copy_records(reader, store, self._cursor, is_late, with_efforts=with_efforts)
        self._cursor = copied.cursor
        return copied.records


class StoreSubscription:
    """What others give to the ``shared`` store while the run ``run_id`` goes on, each record once: so that two runs
    that tune for one class at the same time do not measure the same. Begins with what comes after now: to be made
    before the run looks up what is there. Raises :class:`RecordStoreError`, as :meth:`new` does."""

    def __init__(self, shared: Path, run_id: str) -> None:
        self._shared = shared
        self._run_id = run_id
        self._cursor = 0
        if shared.exists():
            with SharedReader(shared) as reader:
                self._cursor = reader.last_seq()

    @contextlib.contextmanager
    def new(self, tasks: Collection[str], origins: Mapping[str, Origin]) -> Iterator[StoreLookup]:
        """What has come for these tasks, by their ids, that depends on just the ``origins``, by device class. It comes
        again where the block fails."""
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
            units = {name: secs for name in origins if (secs := reader.unit_of(class_unit(name))) is not None}
        yield StoreLookup(self._shared, {task: tuple(each.values()) for task, each in words.items()}, units)
        self._cursor = cursor


def note_efforts(
    own: Path,
    run_id: str,
    limits: Limits,
    tasks: Sequence[TaskProgress],
    elapsed_secs: float,
    new_trials: int,
    tried: Collection[str],
) -> None:
    """Write into the run's ``own`` store, which nobody else writes now, what it and earlier runs there have spent on
    each of its ``tasks`` that it tuned. ``tried``: the ids of those that had trials in this run."""
    count = max(1, len(tasks))
    asked = share_of(limits, count)
    before = _spent_before(own, run_id)
    efforts = []
    for task in tasks:
        if task.described and task.finish_reason != SETTLED:
            is_tried = task.task_id in tried
            spent = effort_of(elapsed_secs, new_trials, count, task.finish_reason, asked, is_tried)
            if spent is not None:
                earlier = before.get(task.task_id, (0.0, 0.0))
                efforts.append(Effort(task.task_id, run_id, spent[0] + earlier[0], spent[1] + earlier[1]))
    with RecordStore(own) as store:
        store.put_efforts(efforts)


def _spent_before(own: Path, run_id: str) -> dict[str, tuple[float, float]]:
    """What earlier runs in this folder have spent on its tasks, all together, with what this run depends on."""
    with SharedReader(own) as reader:
        origins = reader.run_origins()
        spent: dict[str, tuple[float, float]] = {}
        for effort, origin in reader.efforts():
            if effort.run_id != run_id and origins.get((run_id, class_of(effort.task_id))) == origin:
                most = spent.get(effort.task_id, (0.0, 0.0))
                spent[effort.task_id] = max(most[0], effort.secs), max(most[1], effort.trials)
    return spent


def tried_in(own: Path, after_seq: int = 0) -> set[str]:
    """The ids of the tasks with trials in a run's own store, those that came after ``after_seq``."""
    if not own.exists():
        return set()
    with RecordReader(own) as reader:
        return reader.tried(after_seq)
