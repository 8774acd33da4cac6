"""Transfer from earlier runs, datasets, MetaSchedule databases and pre-trained models (``--transfer-from``).

Reading a record database or a MetaSchedule database loads TVM, because the sketches of its tasks are derived anew.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fleet_tune.base import task_data
from fleet_tune.base.errors import TransferError, UserError
from fleet_tune.base.records.datasets import dataset
from fleet_tune.base.records.datasets.dataset_codec import decode_value
from fleet_tune.base.records.datasets.sources import RECORDS_FILE, check_source
from fleet_tune.base.records.stores.classes import FINGERPRINTS
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Transferred
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.task_data import TaskData
from fleet_tune.runs.shared_store.damaged_records import set_aside
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, read_model
from policies.cost_models.global_local import transferable
from policies.cost_models.knowledge import by_workload, general_prior, own_prior, teaches_own
from policies.cost_models.protocol import CostModel
from policies.search.methods import Method

PriorKind = Literal["own", "shared", "none"]
"""The model from which a task starts: trained on records of its own workload, shared by all tasks, or none."""

_LOG = logging.getLogger(__name__)
_SKIPPED_LINES = 20


@dataclass(frozen=True, eq=False)
class TransferSource:
    """A source of measured candidates, or of a trained model."""

    name: str
    tasks: tuple[TaskData, ...] = ()
    model: CostModel | None = None
    device_kind: str = ""
    """The kind of device for which the model was trained. Empty without a model."""
    left_out: int = 0
    """Number of records that do not fit the sketches of this version."""


def read_source(path: Path, entries: Sequence[SearchTask] = ()) -> TransferSource:
    """Read a source to learn from.

    Args:
        path: a dataset (.ftd), a records.db or its folder, a shared store, the folder of a MetaSchedule database, or a
            model that ``fleet-tune model`` wrote (``pretrained`` is the model that comes with fleet-tune).
        entries: the tasks of the run. If a MetaSchedule database or a store was measured on the same targets, their
            devices describe its devices.

    Raises :class:`UserError` if the source is none of these, damaged, or empty.
    """
    kind = check_source(path)
    if kind == "metaschedule":
        return _checked(_read_metaschedule(path, entries))
    if kind == "records":
        return _checked(_read_records(path / RECORDS_FILE if path.is_dir() else path, entries))
    if kind == "dataset":
        return _checked(TransferSource(str(path), tuple(dataset.load(path))))
    model, manifest = read_model(path)
    return TransferSource(str(path), model=model, device_kind=manifest.device_kind)


def _checked(found: TransferSource) -> TransferSource:
    if found.left_out:
        _LOG.warning("%s: %d records fit no sketch of this version and are skipped", found.name, found.left_out)
    if not any(data.ok.any() for data in found.tasks):
        raise TransferError(f"{found.name} has no measured candidate that can be learned from", "give another source")
    return found


def _read_records(path: Path, entries: Sequence[SearchTask]) -> TransferSource:
    """Read a record store. The store of a run describes its devices. A shared store does not: a device in it counts as
    the fleet's device with the same target, or else is described by its target alone. Tasks of a shared store for other
    kinds of devices than those of the fleet are skipped."""
    from devices.describing.describer import describe_tasks
    from devices.metaschedule.learning import assumed

    with RecordReader(path) as reader:
        meta, tasks = reader.meta(), reader.tasks()
        records = task_data.by_task(reader)
    if damaged := set_aside(path):
        _LOG.warning("records that cannot be read are set aside: %s", damaged)
    known = [task for task in tasks if task.id in records]
    if FINGERPRINTS in meta:
        fingerprints = {each.device_class.name: each for each in decode_value(json.loads(meta[FINGERPRINTS]))}
        known = [task for task in known if task.device_class.name in fingerprints]
        abstractions = {name: each.abstraction for name, each in fingerprints.items()}
    else:
        here = {entry.task.device_class.target: entry.abstraction for entry in entries}
        abstractions = {
            of.name: here[of.target] if of.target in here else assumed(of.target)
            for of in {task.device_class for task in known}
        }
        kinds = {entry.abstraction.kind for entry in entries} or {each.kind for each in abstractions.values()}
        known = [task for task in known if abstractions[task.device_class.name].kind in kinds]
        records = {task.id: records[task.id] for task in known}
    left_out = sum(len(records.get(task.id, ())) for task in tasks if task not in known)
    found: list[TaskData] = []
    for task, described in zip(known, describe_tasks(known), strict=True):
        abstraction = abstractions[task.device_class.name]
        data, unknown = task_data.task_data(task, abstraction, described.sketches, records[task.id])
        left_out += unknown
        if len(data):
            found.append(data)
    return TransferSource(str(path), tuple(found), left_out=left_out)


def _read_metaschedule(path: Path, entries: Sequence[SearchTask]) -> TransferSource:
    from devices.metaschedule.learning import read_database

    devices = {entry.task.device_class.target: entry.abstraction for entry in entries}
    imported = read_database(path, devices)
    for line in imported.skipped[:_SKIPPED_LINES]:
        _LOG.warning("%s: skipped: %s", path, line)
    if len(imported.skipped) > _SKIPPED_LINES:
        _LOG.warning("%s: skipped: %d more lines", path, len(imported.skipped) - _SKIPPED_LINES)
    return TransferSource(str(path), imported.tasks, left_out=imported.unmatched)


def builtin_applies(entries: Sequence[SearchTask], method: Method) -> bool:
    """Return true if a model that comes with fleet-tune is used by default: for our own method and for ``moa-pruner``,
    if all tasks are for x86 CPUs. The other methods of papers start without a model, as they were published."""
    path = BUILTIN_PATHS.get(method.starts_from)
    return path is not None and path.is_file() and all(map(_for_x86, entries))


def _for_x86(entry: SearchTask) -> bool:
    target = json.loads(entry.task.device_class.target)
    return entry.abstraction.kind == "cpu" and str(target.get("mtriple", "")).startswith("x86_64")


def what_applies(
    entries: Sequence[SearchTask], method: Method, source: Path | None, *, pretrained: bool
) -> TransferSource | None:
    """Read ``source``. Without a source, read the model that comes with fleet-tune, if ``pretrained`` allows it and it
    applies. Return None if the search starts without a model. Raises :class:`UserError`."""
    if source is not None:
        return read_source(source, entries)
    if pretrained and builtin_applies(entries, method):
        return read_source(Path(method.starts_from))
    if method.training is not None and method.training.offline:
        raise TransferError(
            f"the method '{method.name}' is never trained here and has no pre-trained model",
            "name one with --transfer-from",
        )
    return None


class TransferPrior:
    """Gives each task the model from which it starts, as soon as the task is described.

    All tasks of a kind of device share one model if the source is a model, or if the method's own kind of model can
    learn from other tasks. Otherwise a task whose workload was measured before gets a model of its own, and the others
    share one.
    """

    def __init__(self, knowledge: TransferSource, method: Method, seed: int, entries: Sequence[SearchTask]) -> None:
        """Check that the source applies. Nothing is trained yet.

        Args:
            knowledge: the source.
            method: the search method.
            seed: seed of the training.
            entries: all tasks, described or not.

        Raises :class:`UserError` if nothing in the source applies to any task.
        """
        if method.training is None:
            raise TransferError(
                f"the method '{method.name}' has no cost model that could learn from {knowledge.name}",
                "choose another --method, or omit --transfer-from",
            )
        if knowledge.model is not None:
            if not transferable(knowledge.model):
                raise UserError(
                    f"the model {knowledge.name} belongs to one task", "give one that 'model pretrain' wrote"
                )
            self._kinds = {knowledge.device_kind}
        else:
            self._kinds = {data.abstraction.kind for data in knowledge.tasks if data.ok.any()}
        self._knowledge = knowledge
        self._method = method
        self._seed = seed
        self._known = {} if method.training.teaches else by_workload(knowledge.tasks)
        self._shared: dict[str, bytes] = {}  # by the kind of device
        self._prior_kinds: dict[str, PriorKind] = {}  # by task id
        if entries and not any(entry.abstraction.kind in self._kinds for entry in entries):
            self._refuse()

    def prior_kind(self, entry: SearchTask) -> PriorKind:
        """Return the kind of model from which a described task starts."""
        if entry.task.id not in self._prior_kinds:
            own = teaches_own(self._known.get(entry.task.workload.hash, ()), entry.sketches, entry.abstraction)
            shared: PriorKind = "shared" if entry.abstraction.kind in self._kinds else "none"
            self._prior_kinds[entry.task.id] = "own" if own else shared
        return self._prior_kinds[entry.task.id]

    def with_prior(self, entry: SearchTask) -> SearchTask:
        """Add to a described task the model from which it starts."""
        match self.prior_kind(entry):
            case "own":
                workload = entry.task.workload
                # Records have seconds for the largest number of rows only.
                sketches = tuple(dataclasses.replace(each, fewer_rows=()) for each in entry.sketches)
                model, lost = own_prior(self._known[workload.hash], sketches, entry.abstraction, self._seed)
                if lost:
                    _LOG.warning("%s: %d records fit no sketch here", workload.name, lost)
                assert model is not None  # teaches_own returned true
                return dataclasses.replace(entry, prior=model.save(), own_prior=True)
            case "shared":
                kind = entry.abstraction.kind
                if kind not in self._shared:
                    self._shared[kind] = _shared_prior(self._knowledge, self._method, kind, self._seed)
                return dataclasses.replace(entry, prior=self._shared[kind])
            case _:
                return entry

    def summary(self, entries: Sequence[SearchTask]) -> Transferred:
        """Summarize the transfer to these described tasks for users."""
        learned = [self.prior_kind(entry) for entry in entries]
        return Transferred(
            source=self._knowledge.name,
            candidates=sum(len(data) for data in self._knowledge.tasks),
            left_out=self._knowledge.left_out,
            own_tasks=learned.count("own"),
            shared_tasks=learned.count("shared"),
        )

    def _refuse(self) -> None:
        name, model = self._knowledge.name, self._knowledge.model
        if model is None:
            raise TransferError(
                f"{name} was measured on other kinds of devices than those of this fleet", "give another source"
            )
        raise TransferError(
            f"the model {name} is for devices of the kind '{self._knowledge.device_kind}', and the fleet has none",
            "give another model",
        )


def _shared_prior(knowledge: TransferSource, method: Method, kind: str, seed: int) -> bytes:
    """Return the saved model that the tasks of this kind of device share."""
    if knowledge.model is not None:
        return knowledge.model.save()
    sources = [data for data in knowledge.tasks if data.abstraction.kind == kind]
    training = method.training
    assert training is not None
    if training.teaches:
        model = general_prior(sources, seed, training.teaches, from_analyzer=training.from_analyzer)
    else:
        model = general_prior(sources, seed)
    assert model is not None  # there is a success of this kind among them
    return model.save()
