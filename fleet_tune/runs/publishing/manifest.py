"""Entries of a compiled network's manifest that loading does not need: its kernels, and its measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fleet_tune.base.domain import Fingerprint, Record, Task
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import NetworkResult


def made_of(
    tasks: Iterable[Task],
    records: Mapping[str, Record],
    rules: Mapping[str, str],
    fingerprint: Fingerprint,
    store: Path,
) -> dict[str, Any]:
    """Return the manifest's entries on the device of the network, and on the record of each task's kernel.

    Args:
        tasks: the tasks of the network.
        records: the record of each task id. The kernel of a task without a record has no schedule.
        rules: the sketch rule of each sketch id.
        fingerprint: the fingerprint of the device class.
        store: the database of the records.
    """
    with RecordReader(store) as reader:
        entries = {task.id: _entry(task, records.get(task.id), rules, reader) for task in tasks}
    return {
        "threads": fingerprint.threads,
        "device_fingerprint": dataclasses.asdict(fingerprint),
        "tasks": entries,
    }


def _entry(task: Task, record: Record | None, rules: Mapping[str, str], reader: RecordReader) -> dict[str, Any]:
    if record is None:
        return {}
    secs = reader.shown_secs(record)
    other = "of another version" if rules else "not described"  # a run without trials describes no task
    return {
        "best_secs": secs,
        "gflops": task.workload.flop / secs / 1e9,
        "rule": rules.get(record.candidate.sketch_id, other),
        "decisions": list(record.candidate.decisions),
        "record": record.seq,
    }


def found(result: NetworkResult) -> dict[str, Any]:
    """Return the manifest's entries on the check and the times of a network. Values that were not measured are missing
    or None."""
    known: dict[str, Any] = {
        "published": result.published,
        "problem": result.problem or None,
        "checked_on": result.checked_on or None,
        "unchecked": result.unchecked or None,
        "fallbacks": [dataclasses.asdict(each) for each in result.fallbacks],
        "chosen_in_network": [dataclasses.asdict(each) for each in result.chosen_in_network],
    }
    if result.special:
        known["special_values"] = result.special
    names = ("tuned_secs", "untuned_secs", "framework_secs", "max_abs_error", "max_rel_error", "mean_rel_error")
    measured = {name: getattr(result, name) for name in names}
    if any(value is not None for value in measured.values()):
        known["measured"] = measured
    if result.untuned_earlier and "measured" in known:
        known["measured"]["untuned_earlier"] = True
    if result.others_cores is not None and "measured" in known:
        known["measured"]["others_cores"] = result.others_cores
    if result.estimate_secs is not None and "measured" in known:
        known["measured"]["estimate_secs"] = result.estimate_secs
    if result.is_throttled and "measured" in known:
        known["measured"]["throttled"] = result.throttled
    if result.in_network is not None:
        known["in_network"] = {**dataclasses.asdict(result.in_network), **result.in_network.sums}
    return known
