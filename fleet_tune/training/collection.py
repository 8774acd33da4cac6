"""Collecting datasets: a run that measures random candidates of every task, and the file made of its records."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from actors.clients.threads import in_thread
from fleet_tune.base import task_data
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.domain import Fingerprint, Task
from fleet_tune.base.errors import DatasetError
from fleet_tune.base.records.datasets import dataset
from fleet_tune.base.records.datasets.dataset_codec import decode_value
from fleet_tune.base.records.datasets.sources import RECORDS_FILE
from fleet_tune.base.records.stores.classes import FINGERPRINTS
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Collected, Progress
from fleet_tune.base.sketch import Sketch
from fleet_tune.base.task_data import Dataset, TaskData
from fleet_tune.runs.run import run
from fleet_tune.runs.shared_store.damaged_records import set_aside

FILE_NAME = "dataset.ftd"
_LOG = logging.getLogger(__name__)


async def collect(request: RunRequest, on_progress: Callable[[Progress], None] | None) -> Collected:
    """Measure until every task has ``request.limits.task_trials`` trials, then write ``out/dataset.ftd``; see
    :func:`fleet_tune.api.collect`."""
    finished = await run(request, on_progress=on_progress)
    result, published = finished.result, finished.published
    written: Path | None = None
    if published is not None and published.tuned.is_complete and request.records.exists():
        tuned = published.tuned
        entries = {entry.task.id: (entry.task, entry.sketches) for entry in tuned.tasks}
        network = tuned.prepared.network.name
        packed, _ = await in_thread(_packed, request.records, network, entries, tuned.prepared.fingerprints)
        if packed.candidates:
            written = request.out / FILE_NAME
            await in_thread(dataset.save, packed, written)
    return Collected(
        network=result.network,
        out=result.out,
        dataset=written,
        outcomes=result.outcomes,
        new_trials=result.new_trials,
        elapsed_secs=result.elapsed_secs,
        interrupted=result.interrupted,
        signal_number=result.signal_number,
    )


def pack(folder: Path, fleet: FleetConfig) -> tuple[Dataset, int]:
    """Return the dataset of all records in ``folder``, whichever command made it, and the number of records that are
    skipped because the rules no longer make their sketch, or make it with other decisions.

    ``fleet`` is probed if the records do not say what their devices are. Raises :class:`DatasetError`.
    """
    from fleet_tune.runs.fleet.fleet_probe import probe_fleet

    records = folder / RECORDS_FILE
    if not records.is_file():
        raise DatasetError(f"{folder} has no records.db", "give a folder that 'dataset collect' or 'tune' wrote to")
    with RecordReader(records) as reader:
        meta, tasks = reader.meta(), reader.tasks()
    if damaged := set_aside(records):
        _LOG.warning("records that cannot be read are set aside: %s", damaged)
    stored = meta.get(FINGERPRINTS)
    if stored is not None:
        fingerprints = {each.device_class.name: each for each in decode_value(json.loads(stored))}
    else:
        fingerprints = {each.device_class.name: each for each in probe_fleet(fleet).values()}
    unknown = sorted({task.device_class.name for task in tasks} - fingerprints.keys())
    if unknown:
        raise DatasetError(
            f"{folder} was measured on {', '.join(unknown)}, and nothing is known of such a device here",
            "name the fleet that measured it with --fleet",
        )
    entries = {task.id: (task, sketches) for task, sketches in zip(tasks, sketches_of(tasks), strict=True)}
    packed, left_out = _packed(records, meta.get("model", ""), entries, fingerprints)
    if not packed.candidates:
        raise DatasetError(
            f"{folder} has no measured candidate", "measure some first, with 'dataset collect' or 'tune'"
        )
    return packed, left_out


def refresh(old: Dataset) -> tuple[Dataset, int]:
    """Return the same measurements with the sketches described anew, and the number of candidates that are skipped
    because the rules no longer make their sketch, or make it without their choice."""
    sketches = sketches_of([data.task for data in old.tasks])
    renewed = [data.with_sketches(of_task) for data, of_task in zip(old.tasks, sketches, strict=True)]
    tasks = tuple(data for data, _ in renewed)
    return Dataset(old.network, old.fingerprints, tasks), sum(count for _, count in renewed)


def sketches_of(tasks: Sequence[Task]) -> list[tuple[Sketch, ...]]:
    """Return the sketches of every task, as this version makes and describes them."""
    from devices.describing.describer import describe_tasks

    return [described.sketches for described in describe_tasks(tasks)]


def _packed(
    records: Path,
    name: str,
    entries: Mapping[str, tuple[Task, tuple[Sketch, ...]]],
    fingerprints: Mapping[str, Fingerprint],
) -> tuple[Dataset, int]:
    """Return the dataset of the network ``name``, and the number of skipped records. The dataset has those tasks of
    ``entries`` (task and sketches by task id) that have candidates in ``records``."""
    with RecordReader(records) as reader:
        by_task = task_data.by_task(reader)
    tasks: list[TaskData] = []
    left_out = 0
    for task_id, (task, sketches) in entries.items():
        measured = by_task.get(task_id, ())
        data, unknown = task_data.task_data(task, fingerprints[task.device_class.name].abstraction, sketches, measured)
        left_out += unknown
        if len(data):
            tasks.append(data)
    return Dataset(name, _used(fingerprints.values(), tasks), tuple(tasks)), left_out


def _used(fingerprints: Iterable[Fingerprint], tasks: Iterable[TaskData]) -> tuple[Fingerprint, ...]:
    names = {data.task.device_class.name for data in tasks}
    return tuple(fingerprint for fingerprint in fingerprints if fingerprint.device_class.name in names)
