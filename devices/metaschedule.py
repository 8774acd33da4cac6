"""MetaSchedule's databases as measured candidates of ours: ``JSONDatabase``, two files of JSON lines.

A line of workloads is ``[structural hash, base64 of the module's JSON text]``, a line of records ``[number of the
workload, [trace, run seconds, target, arguments]]``. A record becomes a candidate where its trace follows one of the
sketches that this version makes of the same program and target, and its decisions are within them; the others are
counted. The database does not say what its devices can do: their numbers are those of a device of the fleet with the
same target, else what the target alone tells.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import Schedule, Trace
from tvm.s_tir.analysis import estimate_tir_flops

from devices.cuda.tensor_cores import tensor_cores, tensor_flops
from devices.networks.lowering import normal_form, workload_hash
from devices.sketches.spaces import DesignSpace
from devices.targets import default_device_class_name, device_kind, resolve_target, vector_bits, vector_registers
from fleet_tune.domain import Candidate, DeviceAbstraction, DeviceClass, Measurement, Outcome, Record, Task, Workload
from fleet_tune.errors import TransferError, UserError
from fleet_tune.records import dataset
from fleet_tune.records.dataset import TaskData

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"

FAILED_SECS = 1e9
"""MetaSchedule writes 1e10 seconds for a candidate that did not run."""

_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, KeyError)


@dataclass(frozen=True, eq=False)
class Imported:
    """The candidates of a database by task, and how many of its records fit no sketch or cannot be read."""

    tasks: tuple[TaskData, ...]
    unmatched: int


def read_database(folder: Path, devices: Mapping[str, DeviceAbstraction]) -> Imported:
    """What a database holds. ``devices``: numbers of known devices by their canonical target.

    Raises :class:`TransferError` where a file is no MetaSchedule database.
    """
    modules = [_workload(line, folder) for line in _lines(folder / WORKLOADS)]
    grouped: dict[tuple[int, str], list[tuple[Any, list[float]]]] = {}
    unmatched = 0
    for line in _lines(folder / RECORDS):
        try:
            number, (trace, run_secs, target, _) = line
            resolved = resolve_target(target)
            if not 0 <= number < len(modules):
                raise ValueError(f"there is no workload {number}")
        except UserError:
            unmatched += 1  # a target that this TVM does not know
            continue
        except (TypeError, ValueError) as error:
            raise _not_a_database(folder / RECORDS, str(error)) from error
        if not run_secs or not all(isinstance(secs, int | float) and secs > 0 for secs in run_secs):
            unmatched += 1  # committed without a measurement
            continue
        grouped.setdefault((number, resolved), []).append((trace, [float(secs) for secs in run_secs]))
    tasks: list[TaskData] = []
    for (number, target), records in grouped.items():
        task = _task(modules[number], target)
        abstraction = devices.get(target) or assumed(target)
        data, lost = _task_data(task, abstraction, records)
        unmatched += lost
        if len(data):
            tasks.append(data)
    return Imported(tuple(tasks), unmatched)


def assumed(target: str) -> DeviceAbstraction:
    """The numbers of a device of which only the target is known: a common server CPU's or GPU's of its width."""
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


def _task(module: tvm.IRModule, target: str) -> Task:
    names = [variable.name_hint for variable in module.functions]
    function = normal_form(module["main"] if "main" in names else module[names[0]])
    kernel = tvm.IRModule({"main": function})
    digest = workload_hash(function)
    workload = Workload(digest, f"workload {digest[:8]}", float(estimate_tir_flops(kernel)), tvm.ir.save_json(kernel))
    return Task(workload, DeviceClass(default_device_class_name(target), target))


def _task_data(
    task: Task, abstraction: DeviceAbstraction, records: list[tuple[Any, list[float]]]
) -> tuple[TaskData, int]:
    space = DesignSpace(task)
    fresh = Schedule(tvm.ir.load_json(task.workload.module), debug_mask="none", error_render_level="none")
    recognised: list[Record] = []
    for at, (trace, run_secs) in enumerate(records):
        candidate = _candidate(space, fresh, trace)
        if candidate is None:
            continue
        failed = min(run_secs) >= FAILED_SECS
        measured = Measurement(Outcome.RUN_ERROR) if failed else Measurement(Outcome.OK, tuple(run_secs))
        recognised.append(
            Record(f"metaschedule-{at}", "metaschedule", candidate, "", measured, "metaschedule", math.nan)
        )
    data, unknown = dataset.task_data(task, abstraction, space.sketches, recognised)
    return data, len(records) - len(recognised) + unknown


def _candidate(space: DesignSpace, fresh: Schedule, trace: Any) -> Candidate | None:
    """The candidate of a stored trace; the trace is replayed, which names its variables as ours are named."""
    schedule = fresh.copy()
    try:
        instructions, decisions = trace
        end = next((at for at, each in enumerate(instructions) if each[0] == "EnterPostproc"), len(instructions))
        before = [instructions[:end], [each for each in decisions if each[0] < end]]
        Trace.apply_json_to_schedule(before, schedule)
        return space.recognise(schedule.trace)
    except _REFUSALS:
        return None


def _workload(line: Any, folder: Path) -> tvm.IRModule:
    try:
        _, text = line
        content = base64.b64decode(text, validate=True)
        # TVM's stream writes the length of a text before it, in eight bytes.
        module = tvm.ir.load_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode())
        if not isinstance(module, tvm.IRModule):
            raise TypeError("a workload is no module")
    except _REFUSALS as error:
        raise _not_a_database(folder / WORKLOADS, f"a workload cannot be read: {type(error).__name__}") from error
    return module


def _lines(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except json.JSONDecodeError as error:
                        raise _not_a_database(path, f"line {number} is cut off or no JSON") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _not_a_database(path, str(error)) from error


def _not_a_database(path: Path, reason: str) -> TransferError:
    return TransferError(
        f"{path} is no file of a MetaSchedule database that can be read: {reason}",
        "mend it (a torn last line can be deleted), or give another folder",
    )
