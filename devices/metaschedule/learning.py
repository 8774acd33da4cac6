"""MetaSchedule's databases as measured candidates to learn from (``--transfer-from``).

A record becomes a candidate if its trace follows one of the sketches that this version makes for the same program and
target, and the sketch allows its decisions. Other records are only counted. The database does not describe its devices.
Their properties are taken from a device of the fleet with the same target, or else assumed from the target alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devices.cuda.tensor_cores import tensor_cores, tensor_flops
from devices.metaschedule.files import FAILED_SECS, DatabaseFiles, DatabaseRecord
from devices.metaschedule.trace_matcher import TraceMatcher
from devices.targets import default_device_class_name, device_kind, vector_bits, vector_registers
from fleet_tune.base import task_data
from fleet_tune.base.domain import DeviceAbstraction, DeviceClass, Measurement, Outcome, Record, Task
from fleet_tune.base.records.datasets.sources import BY_METASCHEDULE
from fleet_tune.base.task_data import TaskData


@dataclass(frozen=True, eq=False)
class ImportedCandidates:
    """The candidates of a database by task."""

    tasks: tuple[TaskData, ...]
    unmatched: int
    """Number of records that fit no sketch."""
    skipped: tuple[str, ...] = ()
    """Lines that cannot be read, each with its number and the reason."""


def read_database(folder: Path, devices: Mapping[str, DeviceAbstraction]) -> ImportedCandidates:
    """Return the candidates of a database. ``devices``: properties of known devices, by canonical target.

    Raises :class:`TransferError` if a file cannot be read.
    """
    files = DatabaseFiles(folder)
    grouped: dict[tuple[str, str], list[DatabaseRecord]] = {}
    for line in files.records():
        grouped.setdefault((line.workload.hash, line.target), []).append(line)
    tasks: list[TaskData] = []
    unmatched = 0
    for (_, target), lines in grouped.items():
        task = Task(lines[0].workload, DeviceClass(default_device_class_name(target), target))
        data, lost = _task_data(task, devices.get(target) or assumed(target), lines)
        unmatched += lost
        if len(data):
            tasks.append(data)
    return ImportedCandidates(tuple(tasks), unmatched, tuple(files.skipped))


def assumed(target: str) -> DeviceAbstraction:
    """Return assumed properties of a device of which only the target is known: those of a common server CPU (with the
    vector width of the target) or GPU."""
    attributes = json.loads(target)
    if device_kind(target) == "cpu":
        cores, lanes = int(attributes["num-cores"]), vector_bits(target) // 32
        # Two multiply-add ports at 3 GHz, 20 GB/s.
        return DeviceAbstraction(
            "cpu", cores, lanes, vector_registers(target), 32 << 10, 1 << 20, 16 << 20, cores * lanes * 12e9, 20e9
        )
    threads = int(attributes.get("max_threads_per_block", 1024))
    shared = int(attributes.get("max_shared_memory_per_block", 48 << 10))
    arch = str(attributes.get("arch", "")).removeprefix("sm_")
    tensor = tensor_cores(f"{arch[:-1]}.{arch[-1:]}")
    # 80 multiprocessors at 1.37 GHz.
    return DeviceAbstraction(
        "cuda", 80, 32, 65536, shared, 6 << 20, 0, 14e12, 9e11, threads, tensor.count, tensor_flops(tensor, 80, 1.37e9)
    )


def measurement_of(run_secs: Sequence[float]) -> Measurement:
    """Return the measurement of a record. MetaSchedule has not compared its output."""
    failed = min(run_secs) >= FAILED_SECS
    return Measurement(Outcome.RUN_ERROR) if failed else Measurement(Outcome.OK, tuple(run_secs))


def _task_data(task: Task, abstraction: DeviceAbstraction, lines: Sequence[DatabaseRecord]) -> tuple[TaskData, int]:
    recognising = TraceMatcher(task)
    recognised: list[Record] = []
    for at, line in enumerate(lines):
        candidate = recognising.candidate(line.trace)
        if candidate is not None:
            uid, by, measured = f"{BY_METASCHEDULE}-{at}", BY_METASCHEDULE, measurement_of(line.run_secs)
            recognised.append(Record(uid, by, candidate, "", measured, by, math.nan))
    data, unknown = task_data.task_data(task, abstraction, recognising.space.sketches, recognised)
    return data, len(lines) - len(recognised) + unknown
