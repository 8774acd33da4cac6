"""``--transfer-from``: what earlier runs, datasets, MetaSchedule databases and pre-trained models teach a new run.

Reading a record database or one of MetaSchedule's loads TVM: the sketches of their tasks are derived anew.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.searcher import SearchTask
from fleet_tune import dataset
from fleet_tune.dataset import TaskData
from fleet_tune.dataset_codec import decode_value
from fleet_tune.errors import TransferError, UserError
from fleet_tune.pretrained import BUILTIN_PATH, read_model
from fleet_tune.records import RecordReader
from fleet_tune.sources import BUILTIN, RECORDS_FILE, check_source
from policies.cost_model import CostModel
from policies.knowledge import by_workload, general_prior, own_prior
from policies.models import transfers
from policies.presets import Preset
from policies.transfer import transferable

FINGERPRINTS = "fingerprints"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What a source holds: measured candidates, or a trained model. ``left_out``: records that could not be read as
    candidates of today's sketches."""

    name: str
    tasks: tuple[TaskData, ...] = ()
    model: CostModel | None = None
    device_kind: str = ""
    left_out: int = 0


def read_source(path: Path, entries: Sequence[SearchTask] = ()) -> Knowledge:
    """What ``path`` holds: a dataset (.ftd), a records.db or its folder, a folder of a MetaSchedule database, or a
    model that ``fleet-tune model`` wrote (``pretrained`` is the one that comes with fleet-tune).

    ``entries``: the tasks at hand, whose devices may be those that a MetaSchedule database was measured on. Raises
    :class:`UserError` where it is none of these, damaged, or empty.
    """
    kind = check_source(path)
    if kind == "metaschedule":
        return _told(_read_metaschedule(path, entries))
    if kind == "records":
        return _told(_read_records(path / RECORDS_FILE if path.is_dir() else path))
    if kind == "dataset":
        return _told(Knowledge(str(path), tuple(dataset.load(path))))
    model, manifest = read_model(path)
    return Knowledge(str(path), model=model, device_kind=manifest.device_kind)


def _told(found: Knowledge) -> Knowledge:
    if found.left_out:
        _LOG.warning("%s: %d records fit no sketch of this version and are left out", found.name, found.left_out)
    if not any(data.ok.any() for data in found.tasks):
        raise TransferError(f"{found.name} has no measured candidate that can be learned from", "give another source")
    return found


def _read_records(path: Path) -> Knowledge:
    from devices.spaces import DesignSpace

    with RecordReader(path) as reader:
        meta, tasks = reader.meta(), reader.tasks()
        records = dataset.by_task(reader)
    stored = meta.get(FINGERPRINTS)
    if stored is None:
        raise TransferError(
            f"{path} does not say what its devices are: an early version wrote it",
            "make a dataset of it with 'fleet-tune dataset pack', and transfer from that",
        )
    prints = {each.device_class.name: each for each in decode_value(json.loads(stored))}
    found: list[TaskData] = []
    left_out = 0
    for task in tasks:
        own = records.get(task.id, ())
        device = prints.get(task.device_class.name)
        if not own or device is None:
            left_out += len(own)
            continue
        data, unknown = dataset.task_data(task, device.abstraction, DesignSpace(task).sketches, own)
        left_out += unknown
        if len(data):
            found.append(data)
    return Knowledge(str(path), tuple(found), left_out=left_out)


def _read_metaschedule(path: Path, entries: Sequence[SearchTask]) -> Knowledge:
    from devices.metaschedule import read_database

    devices = {entry.task.device_class.target: entry.abstraction for entry in entries}
    imported = read_database(path, devices)
    return Knowledge(str(path), imported.tasks, left_out=imported.unmatched)


def builtin_applies(entries: Sequence[SearchTask], preset: Preset) -> bool:
    """Whether the model that comes with fleet-tune is used without being asked for: for our own method, where all tasks
    are for x86 CPUs. The methods of the papers start as they were published."""
    return preset.name == "fleet" and BUILTIN_PATH.is_file() and all(map(_for_x86, entries))


def _for_x86(entry: SearchTask) -> bool:
    target = json.loads(entry.task.device_class.target)
    return entry.abstraction.kind == "cpu" and str(target.get("mtriple", "")).startswith("x86_64")


def start_warm(
    entries: Sequence[SearchTask], preset: Preset, seed: int, source: Path | None, *, pretrained: bool
) -> tuple[SearchTask, ...]:
    """The tasks with what ``source`` teaches them, or with the model that comes with fleet-tune where there is no
    source, ``pretrained`` allows it and it applies. Raises :class:`UserError`."""
    if source is not None:
        return with_priors(entries, read_source(source, entries), preset, seed)
    if pretrained and builtin_applies(entries, preset):
        return with_priors(entries, read_source(Path(BUILTIN)), preset, seed)
    if preset.offline:
        raise TransferError(
            f"the method '{preset.name}' is never trained here and has no pre-trained model",
            "name one with --transfer-from",
        )
    return tuple(entries)


def with_priors(
    entries: Sequence[SearchTask], knowledge: Knowledge, preset: Preset, seed: int
) -> tuple[SearchTask, ...]:
    """The tasks, each with the model that it starts from.

    Where the method's model can be pre-trained itself, that is what starts (or the given model). Else a task whose
    workload was measured before starts from a model of its own, and the others from one of features that all tasks
    share. Raises :class:`UserError` where nothing in the source applies to any task.
    """
    if not preset.learned_model:
        raise TransferError(
            f"the method '{preset.name}' has no cost model that could learn from {knowledge.name}",
            "choose another --method, or leave out --transfer-from",
        )
    if knowledge.model is not None:
        return _with_model(entries, knowledge, knowledge.model)
    assert preset.model is not None
    kinds = {entry.abstraction.kind for entry in entries}
    general: dict[str, bytes] = {}
    for kind in kinds:
        sources = [data for data in knowledge.tasks if data.abstraction.kind == kind]
        if preset.learns_on and transfers(preset.model):
            model = general_prior(sources, seed, preset.model, from_analyzer=preset.from_analyzer)
        else:
            model = general_prior(sources, seed)
        general[kind] = b"" if model is None else model.save()
    known = by_workload(knowledge.tasks)
    found: list[SearchTask] = []
    for entry in entries:
        prior = general[entry.abstraction.kind]
        own = known.get(entry.task.workload.hash, [])
        if own and not preset.learns_on:
            model, lost = own_prior(own, entry.sketches, entry.abstraction, seed)
            if lost:
                _LOG.warning("%s: %d records fit no sketch here", entry.task.workload.name, lost)
            prior = prior if model is None else model.save()
        found.append(dataclasses.replace(entry, prior=prior))
    if not any(entry.prior for entry in found):
        raise TransferError(
            f"{knowledge.name} was measured on other kinds of devices than those of this fleet", "give another source"
        )
    return tuple(found)


def _with_model(entries: Sequence[SearchTask], knowledge: Knowledge, model: CostModel) -> tuple[SearchTask, ...]:
    if not transferable(model):
        raise UserError(f"the model {knowledge.name} belongs to one task", "give one that 'model pretrain' wrote")
    saved = model.save()
    if not any(entry.abstraction.kind == knowledge.device_kind for entry in entries):
        raise TransferError(
            f"the model {knowledge.name} is for devices of the kind '{knowledge.device_kind}', and the fleet has none",
            "give another model",
        )
    return tuple(
        dataclasses.replace(entry, prior=saved) if entry.abstraction.kind == knowledge.device_kind else entry
        for entry in entries
    )
