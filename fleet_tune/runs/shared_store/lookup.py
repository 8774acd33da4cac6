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
from policies.runs.warm_start import Share, covered, share_of
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


@dataclass(frozen=True)
class StoreLookup:
    """What the shared store ``path`` has for a run. ``words``: by task id the records of its candidates, the best
    first, in the store's seconds; ``units``: the probe's seconds at these, by device class. ``settled``: the tasks that
    need no trial. ``seeds``: by task id traces with their decisions that the search of others begins with;
    ``confirmed``: those of them of the same workload are tried, and if one is right that is all. ``imported``: by task
    id its sketches that no rule makes, see :attr:`fleet_tune.base.domain.Task.imported`. ``shipped``: those of the
    seeded tasks whose seeds come with fleet-tune. ``similar``: by id of each task that is not settled those of the
    nearest similar ones, ``prior``: what cost models learn from them. ``shown``: what people call the store, empty
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
    prior: StorePrior = field(default_factory=StorePrior)
    shown: str = ""

    def seeded(self, entry: SearchTask) -> SearchTask:
        """A task that is described with the candidates that its search begins with."""
        lanes = entry.abstraction.lanes
        made = seeds(self.seeds.get(entry.task.id, ()), entry.sketches, lanes)[:_MOST_SEEDS]
        enough = len(made) if entry.task.id in self.confirmed else 0
        return dataclasses.replace(entry, seeds=tuple(made), enough=enough) if made else entry

    def without_prior(self, entries: Sequence[SearchTask]) -> list[SearchTask]:
        """Those of these tasks whose cost models learn nothing from the store."""
        return [entry for entry in entries if entry.task.id not in self.prior.learners]

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
            prior=self.prior.with_class(other.prior),
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
        elsewhere = _OtherOrigins(reader)
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
    shipped: ShippedRecords | None,
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


class _OtherOrigins:
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
