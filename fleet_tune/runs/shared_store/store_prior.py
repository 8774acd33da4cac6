"""Cost models trained before the first trial on records of similar workloads in the shared store.

Similar workloads have the same operators and the same device class. One model of features that all tasks share is
trained for each class. For tasks with similar workloads it replaces the model that comes with fleet-tune.

The effort is bounded: the number of workloads and of records of each is limited, and only workloads whose sketches were
described on this machine by this version are used. Describing another one would take seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devices.describing.cache import DescriptionCache
from fleet_tune.base import task_data
from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.records.datasets.sources import BUILTIN
from fleet_tune.base.records.sharing.shared import SharedReader, class_of
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.task_data import TaskData
from policies.cost_models.knowledge import general_prior
from policies.search.methods import Method

LEAST_CANDIDATES = 192
"""Minimum of candidates of a device class that ran. Fewer teach less than the model that comes with fleet-tune."""
MOST_WORKLOADS = 16
"""Maximum of workloads for each device class."""
MOST_RECORDS = 256
"""Maximum of records for each workload. They are spread evenly over all records, because a search measures the good
candidates last."""


def learns_from_store(method: Method) -> bool:
    """Return true for a method that learns from the store by default: our own. The methods of papers start without
    knowledge, as they were published."""
    return method.starts_from == BUILTIN and method.learns_online


@dataclass(eq=False)
class StorePrior:
    """Cost models of device classes, trained when they are first used."""

    sources: Mapping[str, Sequence[TaskData]] = field(default_factory=dict)
    """Candidates of similar workloads, by device class."""
    learners: frozenset[str] = frozenset()
    """Ids of the tasks that start from the model of their device class."""
    seed: int = 0
    _models: dict[str, bytes] = field(default_factory=dict)  # by device class

    @property
    def candidates(self) -> int:
        """The number of candidates on which the models are trained."""
        return sum(len(data) for of_class in self.sources.values() for data in of_class)

    def with_prior(self, entry: SearchTask) -> SearchTask:
        """Add to a described task, one of the ``learners``, the model of its class. The first task of a class trains
        the model."""
        name = entry.task.device_class.name
        if name not in self._models:
            model = general_prior(self.sources[name], self.seed)
            assert model is not None  # read_store_prior keeps only classes with successes
            self._models[name] = model.save()
        return dataclasses.replace(entry, prior=self._models[name])

    def with_class(self, other: StorePrior) -> StorePrior:
        """Add the models of a device class that joined later."""
        return StorePrior(
            {**self.sources, **other.sources},
            self.learners | other.learners,
            self.seed,
            {**self._models, **other._models},
        )


def read_store_prior(
    store: Path,
    similar: Mapping[str, Sequence[str]],
    devices: Mapping[str, DeviceAbstraction],
    kept: DescriptionCache,
    seed: int,
) -> StorePrior:
    """Read the records of similar tasks.

    Args:
        store: the shared store.
        similar: the ids of similar tasks, the nearest first, by the id of each task that is to be tuned.
        devices: the abstraction of each device class.
        kept: the descriptions of tasks on this machine.
        seed: seed of the training.

    Raises :class:`RecordStoreError`.
    """
    sources: dict[str, list[TaskData]] = {}
    with SharedReader(store) as reader:
        known = {task.id: task for task in reader.tasks({each for ids in similar.values() for each in ids})}
        for task_id in _by_rank(similar.values()):
            task, of_class = known.get(task_id), sources.setdefault(class_of(task_id), [])
            described = None if task is None or len(of_class) == MOST_WORKLOADS else kept.find(task)
            if task is None or described is None or not described.sketches:
                continue
            records = (dataclasses.replace(each, trace="") for each in reader.some_of(task_id, MOST_RECORDS))
            data, _ = task_data.task_data(task, devices[task.device_class.name], described.sketches, records)
            if data.ok.any():
                of_class.append(data)
    ran = {name: sum(int(data.ok.sum()) for data in of_class) for name, of_class in sources.items()}
    sources = {name: of_class for name, of_class in sources.items() if ran[name] >= LEAST_CANDIDATES}
    teachers = {data.task.id for of_class in sources.values() for data in of_class}
    learners = frozenset(task_id for task_id, ids in similar.items() if not teachers.isdisjoint(ids))
    return StorePrior(sources, learners, seed)


def _by_rank(lists: Iterable[Sequence[str]]) -> list[str]:
    """List the first entries of all lists, then the second ones, and so on. An entry of several lists comes once."""
    ordered = list(lists)
    longest = max(map(len, ordered), default=0)
    return list(dict.fromkeys(ids[at] for at in range(longest) for ids in ordered if at < len(ids)))
