"""Writes records of ours as a MetaSchedule database for TVM's ``MetaScheduleApplyDatabase`` and ``JSONDatabase``.

TVM takes the record with the lowest mean run time, on whatever device it was measured. So a folder holds records of one
device class only, and each record has a single run time, the one by which we rank
(:attr:`fleet_tune.base.domain.Measurement.rank_secs`). A candidate whose output was not compared is left out if TVM
would take it instead of the best verified one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from devices.metaschedule.files import ABOUT, RECORDS, WORKLOADS
from devices.sketches.programs import is_rewritten
from fleet_tune.base.domain import Outcome, Record, Task
from fleet_tune.base.errors import RecordFileError
from fleet_tune.base.records.files.atomic_file import sync_file, sync_folder

_NOT_RUN_SECS = 1e10
"""Seconds that MetaSchedule writes for a candidate that failed."""


def write_database(folder: Path, device_class: str, tasks: Iterable[tuple[Task, Sequence[Record]]]) -> int:
    """Write the candidates of tasks of one ``device_class``, each as one record, and return their number. For each
    task, the best record must be the first in ``tasks``, because it is written twice. The files appear only once the
    database is complete.

    Raises :class:`RecordFileError` if the folder already has a database, or cannot be written.
    """
    if any((folder / name).exists() for name in (WORKLOADS, RECORDS)):
        raise RecordFileError(f"{folder} has a MetaSchedule database already", "give another folder")
    written = workload = 0
    with _written(folder) as (workloads, records, about):
        _write(about, {"device_class": device_class})
        for task, words in tasks:
            usable = _usable(words)
            if not usable:
                continue
            module = tvm.ir.load_json(task.workload.module)
            target = json.loads(task.device_class.target)
            arguments = [each.as_json() for each in ms.arg_info.ArgInfo.from_prim_func(module["main"])]
            lines = [[json.loads(record.trace), [secs], target, arguments] for record, secs in usable]
            # A kernel that was not fused keeps the attribute that fusion decides by, and TVM compares this attribute.
            # So the best record is also written for the workload with it.
            for variant, of_variant in ((module, lines), (_annotated(module), lines[:1])):
                _write(workloads, ms.database.Workload(variant).as_json())
                for line in of_variant:
                    _write(records, [workload, line])
                workload += 1
            written += len(usable)
    return written


def _usable(words: Sequence[Record]) -> list[tuple[Record, float]]:
    """Return the records to write, with the seconds to write for each."""
    best = min((each.measurement.rank_secs for each in words if each.measurement.verified), default=math.inf)
    usable = []
    for word in words:
        measured = word.measurement
        if not word.trace or is_rewritten(word.trace):
            continue
        if measured.outcome is not Outcome.OK:
            usable.append((word, _NOT_RUN_SECS))
        elif measured.verified or best < measured.rank_secs:
            usable.append((word, measured.rank_secs))
    return usable


def _annotated(module: tvm.IRModule) -> tvm.IRModule:
    """Return a workload with the attribute that it has in a network whose fusion TVM decides."""
    annotated: tvm.IRModule = relax.transform.AnnotateTIROpPattern()(module)
    return annotated


def _write(file: IO[str], line: Any) -> None:
    file.write(json.dumps(line, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    """Convert TVM's own lists and numbers."""
    if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return value.value
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"no value of JSON: {type(value).__name__}")


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[tuple[IO[str], IO[str], IO[str]]]:
    """Open the files under temporary names, and rename them when the block is left normally. Workloads are renamed
    before records, because TVM reads records only with their workloads."""
    names = (ABOUT, WORKLOADS, RECORDS)
    parts = [folder / f".{name}.{os.getpid()}.part" for name in names]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with parts[0].open("w") as about, parts[1].open("w") as workloads, parts[2].open("w") as records:
            yield workloads, records, about
        for part in parts:
            sync_file(part)
        for part, name in zip(parts, names, strict=True):
            os.replace(part, folder / name)
        sync_folder(folder)
    except OSError as error:
        raise RecordFileError(
            f"{folder} cannot be written: {error.strerror or error}", "choose another place"
        ) from error
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
