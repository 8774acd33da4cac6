"""Look-up in the shared store before a run: records of its tasks, schedules of similar tasks, and training data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet_tune.base.domain import Limits, Outcome, Record, Task
from fleet_tune.base.records.datasets.sources import BY_METASCHEDULE
from fleet_tune.base.records.sharing.shared import (
    SharedReader,
    class_of,
)
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.store import class_unit
from fleet_tune.base.results import FromStore
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.shared_store.efforts import SETTLED, tried_in
from fleet_tune.runs.shared_store.shipped import Seed, ShippedRecords
from fleet_tune.runs.shared_store.store_prior import MOST_WORKLOADS, StorePrior
from policies.analysis.cpu.fewer_rows import CONSIDERED
from policies.runs.warm_start import Share, covered, share_of
from policies.search.adapting import seeds
from policies.search.bandits import kind_of_name

# Maximum of records that are taken of a task. Settled task: the records of which the network may be made. Other task:
# about as many as a search remembers.
_TOP = 8
_MOST = 2000
# Numbers of candidates that confirm results of other origins, of seeds of each similar task, and of similar tasks.
_CONFIRMED = 3
_OF_SIMILAR = 2
_SIMILAR = 3
_MOST_SEEDS = 8


@dataclass(frozen=True)
class StoreLookup:
    """The records and schedules that the shared store has for a run."""

    path: Path
    records: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    """The last record of each candidate, by task id, the best first, with seconds as the store counts them."""
    units: Mapping[str, float] = field(default_factory=dict)
    """The unit in which the seconds of each device class are counted, as seconds of the probe."""
    shown_speeds: Mapping[str, float] = field(default_factory=dict)
    """The speed at which the seconds of each device class are shown, if the store knows it."""
    settled: frozenset[str] = frozenset()
    """Ids of the tasks that need no trial."""
    seeds: Mapping[str, Sequence[Seed]] = field(default_factory=dict)
    """Schedules of the same workload with which the search of a task begins, by task id."""
    similar_seeds: Mapping[str, Sequence[Seed]] = field(default_factory=dict)
    """Schedules of similar tasks, by task id."""
    confirmed: frozenset[str] = frozenset()
    """Ids of the seeded tasks that need no more trials than their seeds, if one of them is right."""
    imported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sketches that no rule makes, by task id; see :attr:`fleet_tune.base.domain.Task.imported`."""
    shipped: frozenset[str] = frozenset()
    """Ids of the tasks with seeds, also of similar tasks, that come with fleet-tune."""
    similar: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Ids of the most similar tasks of each task that is not settled."""
    prior: StorePrior = field(default_factory=StorePrior)
    """Cost models trained on the similar tasks."""
    shown: str = ""
    """The name of the store for users. Empty if that is its path."""

    def seeded(self, entry: SearchTask) -> SearchTask:
        """Add to a described task the candidates with which its search begins."""
        lanes = entry.abstraction.lanes
        made = seeds(self.seeds.get(entry.task.id, ()), entry.sketches, lanes)[:_MOST_SEEDS]
        similar = seeds(self.similar_seeds.get(entry.task.id, ()), entry.sketches, lanes)
        adapted = [each for each in similar if each not in made][: _MOST_SEEDS - len(made)]
        confirmation_trials = len(made) if entry.task.id in self.confirmed else 0
        return dataclasses.replace(
            entry, seeds=tuple(made), adapted=tuple(adapted), confirmation_trials=confirmation_trials
        )

    def without_prior(self, entries: Sequence[SearchTask]) -> list[SearchTask]:
        """List the tasks whose cost models learn nothing from the store."""
        return [entry for entry in entries if entry.task.id not in self.prior.learners]

    def with_class(self, other: StoreLookup) -> StoreLookup:
        """Add the look-up of a device class that joined later."""
        return dataclasses.replace(
            self,
            records={**self.records, **other.records},
            units={**self.units, **other.units},
            shown_speeds={**self.shown_speeds, **other.shown_speeds},
            settled=self.settled | other.settled,
            seeds={**self.seeds, **other.seeds},
            similar_seeds={**self.similar_seeds, **other.similar_seeds},
            confirmed=self.confirmed | other.confirmed,
            imported={**self.imported, **other.imported},
            shipped=self.shipped | other.shipped,
            similar={**self.similar, **other.similar},
            prior=self.prior.with_class(other.prior),
        )

    @property
    def reasons(self) -> dict[str, str]:
        """The reason why each settled task gets no trial."""
        return dict.fromkeys(self.settled, SETTLED)

    @property
    def summary(self) -> FromStore:
        """A summary for users."""
        records = sum(len(each) for each in self.records.values())
        known = sum(1 for each in self.records.values() if each)
        seeded = (self.seeds.keys() | self.similar_seeds.keys()) - self.confirmed - self.shipped
        return FromStore(
            self.shown or str(self.path),
            records,
            known,
            len(self.settled),
            len(self.confirmed - self.shipped),
            len(seeded),
            len(self.shipped),
            len(self.confirmed & self.shipped),
            len(self.prior.learners),
            self.prior.candidates,
        )


def look_up(
    path: Path,
    tasks: Sequence[Task],
    origins: Mapping[str, Origin],
    limits: Limits,
    own: Path,
    shipped: ShippedRecords | None = None,
) -> StoreLookup:
    """Look up the tasks of a run in a store.

    Args:
        path: the store.
        tasks: the tasks of the run.
        origins: the origin of the run's records, by device class; only records of the same origin count.
        limits: the limits of the run.
        own: the run's own store. A task with trials in it is never settled: the user continues to tune it.
        shipped: records that come with fleet-tune, for tasks without a verified record in the store.

    Raises :class:`RecordStoreError`.
    """
    tried = tried_in(own)
    asked = share_of(limits, max(1, len(tasks)))
    if not path.exists():
        return _with_shipped(StoreLookup(path), tasks, origins, asked, tried, shipped)
    imported = _imported_in(own)
    with SharedReader(path) as reader:
        found = _TaskLookups(reader, origins, asked, tried)
        for task in tasks:
            found.look_up(task)
        imported |= reader.imported_sketches()
        units = {name: secs for name in origins if (secs := reader.speeds.unit_of(class_unit(name))) is not None}
        shown_speeds = reader.speeds.shown()
    lookup = StoreLookup(
        path,
        found.words,
        units,
        shown_speeds,
        frozenset(found.settled),
        found.seeds,
        found.similar_seeds,
        frozenset(found.confirmed),
        imported,
        similar=found.similar,
    )
    unknown = [task for task in tasks if task.id not in found.verified]
    return _with_shipped(lookup, unknown, origins, asked, tried, shipped)


class _TaskLookups:
    """Look-ups of one task after the other in an open store. The attributes have the meaning of the fields of
    :class:`StoreLookup`; ``words`` are its ``records``."""

    def __init__(
        self, reader: SharedReader, origins: Mapping[str, Origin], asked: Share, tried: Collection[str]
    ) -> None:
        self._reader = reader
        self._asked = asked
        self._tried = tried
        self._numbers = {name: reader.numbers_of(origin) for name, origin in origins.items()}
        self._elsewhere = _OtherOrigins(reader)
        self._spent: dict[str, list[tuple[float, float]]] = {}
        """Efforts on each task by runs with the same origin."""
        self._spent_elsewhere: dict[str, list[tuple[float, float]]] = {}
        for effort, origin in reader.efforts():
            is_same = origin == origins.get(class_of(effort.task_id))
            efforts = self._spent if is_same else self._spent_elsewhere
            efforts.setdefault(effort.task_id, []).append((effort.secs, effort.trials))
        self.words: dict[str, Sequence[Record]] = {}
        self.settled: set[str] = set()
        self.confirmed: set[str] = set()
        self.seeds: dict[str, Sequence[Seed]] = {}
        self.similar_seeds: dict[str, Sequence[Seed]] = {}
        self.similar: dict[str, Sequence[str]] = {}
        self.verified: set[str] = set()
        """Ids of the tasks that have verified records, of any origin."""

    def look_up(self, task: Task) -> None:
        """Look up a task: its records of the same origin, or without a verified one seeds from other origins and from
        similar tasks."""
        of_class = self._numbers[task.device_class.name]
        # The best kernel over dynamic rows is searched among more records.
        most = _TOP + CONSIDERED if task.fewer_rows else _TOP
        best = self._reader.last_words(task.id, of_class, most)
        wrong = self._reader.found_wrong(task.id, of_class)
        has_best = bool(best) and best[0].measurement.verified
        if has_best:
            self.verified.add(task.id)
        if has_best and self._is_covered(task, self._spent):
            self.settled.add(task.id)
            self.words[task.id] = _together(best, wrong)
            return
        self.similar[task.id] = self._elsewhere.similar(task)
        self.words[task.id] = _together(self._reader.last_words(task.id, of_class, _MOST), wrong)
        if not has_best:
            self._look_elsewhere(task)

    def _look_elsewhere(self, task: Task) -> None:
        """Look up seeds for a task without a verified record of the same origin."""
        own_seeds = self._elsewhere.of_task(task.id)
        if own_seeds:
            self.verified.add(task.id)
            self.seeds[task.id] = own_seeds
        if own_seeds and self._is_covered(task, self._spent_elsewhere):
            self.confirmed.add(task.id)
        elif similar := self._elsewhere.of_similar(task):
            self.similar_seeds[task.id] = similar

    def _is_covered(self, task: Task, spent: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
        """Return true if the run has not tried the task, and one of the efforts ``spent`` covers the run's share."""
        return task.id not in self._tried and covered(self._asked, spent.get(task.id, ()))


def _with_shipped(
    found: StoreLookup,
    tasks: Sequence[Task],
    origins: Mapping[str, Origin],
    asked: Share,
    tried: Collection[str],
    shipped: ShippedRecords | None,
) -> StoreLookup:
    """Add shipped records as seeds for these tasks, which have no verified record in the store. Shipped seeds of
    similar tasks are added if there are none of the task itself; they come after the store's."""
    if shipped is None:
        return found
    made: dict[str, Sequence[Seed]] = {}
    similar_made: dict[str, Sequence[Seed]] = {}
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
            made[task.id] = same
        elif similar := shipped.of_similar(task, origin):
            similar_made[task.id] = [*found.similar_seeds.get(task.id, ()), *similar]
    return dataclasses.replace(
        found,
        seeds={**found.seeds, **made},
        similar_seeds={**found.similar_seeds, **similar_made},
        confirmed=found.confirmed | confirmed,
        shipped=frozenset([*made, *similar_made]),
    )


def _together(words: Sequence[Record], wrong: Sequence[Record]) -> list[Record]:
    """Merge the last records of a task with those found wrong, each candidate once."""
    known = {word.candidate.id for word in words}
    return [*words, *(word for word in wrong if word.candidate.id not in known)]


def _imported_in(own: Path) -> dict[str, tuple[str, ...]]:
    """Return by task id the sketches that no rule makes and of which the run's own store has records."""
    if not own.exists():
        return {}
    with SharedReader(own) as reader:
        return reader.imported_sketches()


def _is_claimed(word: Record) -> bool:
    """Return true for a candidate that ran in MetaSchedule, which compares no outputs."""
    return word.run_id == BY_METASCHEDULE and word.measurement.outcome is Outcome.OK


class _OtherOrigins:
    """Seeds from records of any origin."""

    def __init__(self, reader: SharedReader) -> None:
        self._reader = reader
        self._origins = frozenset(reader.origins())
        self._sizes: dict[str, list[tuple[str, str, float]]] = {}  # by device class

    def of_task(self, task_id: str, most: int = _CONFIRMED) -> list[Seed]:
        """List the best candidates of a task."""
        words = self._reader.last_words(task_id, self._origins, most)
        usable = [word for word in words if word.trace and (word.measurement.verified or _is_claimed(word))]
        return [(word.candidate.sketch_id, word.trace, word.candidate.decisions) for word in usable]

    def similar(self, task: Task) -> list[str]:
        """List the ids of the tasks of the same operators and class, the nearest number of operations first."""
        name, workload = task.device_class.name, task.workload
        if name not in self._sizes:
            self._sizes[name] = self._reader.workload_sizes(name)
        kind = kind_of_name(workload.name)
        similar = [each for each in self._sizes[name] if each[0] != workload.hash and kind_of_name(each[1]) == kind]
        similar.sort(key=lambda each: abs(math.log((each[2] + 1) / (workload.flop + 1))))
        return [f"{hash_}@{name}" for hash_, _, _ in similar[:MOST_WORKLOADS]]

    def of_similar(self, task: Task) -> list[Seed]:
        """List the best candidates of the nearest similar tasks."""
        return [seed for task_id in self.similar(task)[:_SIMILAR] for seed in self.of_task(task_id, _OF_SIMILAR)]
