"""From the best records of a store to compiled, checked and measured networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from devices.networks import compiled
from devices.networks.frontend import Network
from devices.networks.latency import measure_in_fresh_process
from devices.networks.lowering import LoweredNetwork, compare
from fleet_tune.domain import Fingerprint, Record, Task
from fleet_tune.errors import FleetFileError, RecordStoreError
from fleet_tune.records.store import RecordReader
from fleet_tune.results import NetworkResult, TaskProgress

# Time for measuring one network; at least one run is made.
_BUDGET_SECS = 3.0
_REPEATS = 50


def device_classes_of(by_device: Mapping[str, Fingerprint]) -> dict[str, Fingerprint]:
    """One fingerprint for each device class, by its name: the first device's stands for its class.

    Raises :class:`FleetFileError` where devices of one class have different targets.
    """
    classes: dict[str, Fingerprint] = {}
    for device, fingerprint in by_device.items():
        first = classes.setdefault(fingerprint.device_class.name, fingerprint)
        if first.device_class.target != fingerprint.device_class.target:
            raise FleetFileError(
                f"device {device!r} has another target than the others of its class {first.device_class.name!r}",
                "give it a device_class of its own in the fleet file",
            )
    return classes


def folder_of(out: Path, device_class: str, classes: int) -> Path:
    """Where the network of a class goes: ``out`` itself for the only class, else a folder of its own."""
    return out if classes == 1 else out / device_class


def build_networks(
    network: Network,
    lowered: Mapping[str, LoweredNetwork],
    prints: Mapping[str, Fingerprint],
    rules: Mapping[str, str],
    here: frozenset[str],
    records: Path,
    out: Path,
) -> tuple[NetworkResult, ...]:
    """Compile the network of every device class from its best records, and check and measure those that run here.

    ``rules``: the sketch rule of each sketch id. ``here``: the classes that this machine belongs to. Raises
    :class:`RecordStoreError` where a class has no record.
    """
    with RecordReader(records) as reader:
        best = {task.id: reader.best(task.id) for of_class in lowered.values() for task in of_class.tasks}
    results = []
    for name, of_class in lowered.items():
        winners = {task.id: best[task.id] for task in of_class.tasks}
        if rules and not any(winners.values()) and of_class.tasks:  # without sketches there is nothing to tune
            raise RecordStoreError(
                f"{records} has no verified record of this network for {name}",
                "tune it first, or name the database of a run of the same network and target",
            )
        folder = folder_of(out, name, len(lowered))
        extra = {
            "threads": prints[name].threads,
            "device_fingerprint": dataclasses.asdict(prints[name]),
            "tasks": {task.id: _entry(task, winners[task.id], rules) for task in of_class.tasks},
        }
        traces = {task_id: record.trace if record else None for task_id, record in winners.items()}
        compiled.compile_network(of_class, traces, folder, extra)
        if name in here:
            results.append(_measured(network, of_class, prints[name].threads, name, folder))
        else:
            results.append(NetworkResult(name, folder, None, None, None, None, None))
    return tuple(results)


def task_results(tasks: Iterable[Task], rules: Mapping[str, str], records: Path) -> tuple[TaskProgress, ...]:
    """The tasks with what a store says of each."""
    with RecordReader(records) as reader:
        return tuple(_task_result(task, rules, reader) for task in tasks)


def _task_result(task: Task, rules: Mapping[str, str], reader: RecordReader) -> TaskProgress:
    record = reader.best(task.id)
    return TaskProgress(
        task_id=task.id,
        name=task.workload.name,
        device_class=task.device_class.name,
        weight=task.weight,
        flop=task.workload.flop,
        sketches=0,
        trials=sum(reader.counts(task.id).values()),
        best_secs=record.measurement.cost_secs if record else float("inf"),
        best_rule=rules.get(record.candidate.sketch_id, "") if record else "",
    )


def _measured(network: Network, lowered: LoweredNetwork, threads: int, name: str, folder: Path) -> NetworkResult:
    """Check and time the network in ``folder`` on this machine, beside the untuned one and its framework."""
    loaded = compiled.load(folder)
    outputs = loaded(*network.example_inputs)
    absolute, relative = compare(outputs if isinstance(outputs, tuple) else (outputs,), network.framework_outputs())
    result = NetworkResult(
        device_class=name,
        folder=folder,
        tuned_secs=measure_in_fresh_process(folder, network.example_inputs, _BUDGET_SECS),
        untuned_secs=compiled.measure_untuned_secs(lowered, network, threads, _BUDGET_SECS),
        torch_secs=network.measure_framework_secs(threads, _REPEATS),
        max_abs_error=absolute,
        max_rel_error=relative,
    )
    measured = {
        "tuned_secs": result.tuned_secs,
        "untuned_secs": result.untuned_secs,
        "torch_secs": result.torch_secs,
        "max_abs_error": absolute,
        "max_rel_error": relative,
    }
    compiled.update_manifest(folder, {"measured": measured})
    return result


def _entry(task: Task, record: Record | None, rules: Mapping[str, str]) -> dict[str, Any]:
    if record is None:
        return {}
    secs = record.measurement.cost_secs
    return {
        "best_secs": secs,
        "gflops": task.workload.flop / secs / 1e9,
        "rule": rules.get(record.candidate.sketch_id, "of another version"),
        "decisions": list(record.candidate.decisions),
        "record": record.seq,
    }
