"""Export of records to a Parquet file, one row each, for pandas, DuckDB, Spark and others. fleet-tune writes such files
and does not read them. pyarrow is an optional dependency."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleet_tune.base.domain import Outcome, Record, Task
from fleet_tune.base.errors import RecordFileError, RequestError
from fleet_tune.base.records.files.atomic_file import sync_file, sync_folder
from fleet_tune.base.records.sharing.shared import SharedReader, class_of
from fleet_tune.base.records.stores.origin import Origin

COLUMNS: Mapping[str, str] = {
    "seq": "int64",
    "uid": "string",
    "run_id": "string",
    "unix_secs": "float64",
    "workload": "string",
    "workload_name": "string",
    "flop": "float64",
    "device_class": "string",
    "target": "string",
    "device": "string",
    "candidate": "string",
    "sketch": "string",
    "decisions": "list<int64>",
    "revision": "int64",
    "outcome": "string",
    "verified": "bool",
    "cost_secs": "float64",
    "rank_secs": "float64",
    "error": "float64",
    "run_secs": "list<float64>",
    "speed": "float64",
    "build_secs": "float64",
    "measure_secs": "float64",
    "detail": "string",
    "cpu_model": "string",
    "threads": "int64",
    "versions": "map<string, string>",
    "machine": "map<string, string>",
    "trace": "string",
}
"""The columns and their types. Costs are null for failures, ``cpu_model``, ``threads``, ``versions`` and ``machine``
for records of runs that do not state their origin."""


def write_parquet(reader: SharedReader, path: Path, device_class: str | None = None) -> int:
    """Write the records of a store, of one class if it is named, and return their number.

    The file gets its name when it is whole. Raise :class:`RequestError` if pyarrow is not installed,
    :class:`RecordFileError`.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RequestError(
            "a Parquet file needs pyarrow, which is not installed", "pip install 'fleet-tune[parquet]'"
        ) from error
    schema = pyarrow.schema([(name, _type(pyarrow, kind)) for name, kind in COLUMNS.items()])
    tasks, origins = {task.id: task for task in reader.tasks()}, reader.run_origins()
    written = 0
    with _written(path) as part, pyarrow.parquet.ParquetWriter(part, schema, compression="zstd") as writer:
        for page in reader.pages():
            chosen = [each for each in page if device_class in (None, class_of(each.task_id))]
            rows = [_row(each, tasks.get(each.task_id), origins) for each in chosen]
            if rows:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            written += len(rows)
    return written


def _row(record: Record, task: Task | None, origins: Mapping[tuple[str, str], Origin]) -> dict[str, Any]:
    measured, candidate, name = record.measurement, record.candidate, class_of(record.task_id)
    ran = measured.outcome is Outcome.OK
    origin = origins.get((record.run_id, name))
    return {
        "seq": record.seq,
        "uid": record.uid,
        "run_id": record.run_id,
        "unix_secs": record.unix_secs,
        "workload": record.task_id.partition("@")[0],
        "workload_name": None if task is None else task.workload.name,
        "flop": None if task is None else task.workload.flop,
        "device_class": name,
        "target": None if task is None else task.device_class.target,
        "device": record.device_id,
        "candidate": candidate.id,
        "sketch": candidate.sketch_id,
        "decisions": candidate.decisions,
        "revision": record.revision,
        "outcome": measured.outcome.value,
        "verified": measured.verified,
        "cost_secs": measured.cost_secs if ran else None,
        "rank_secs": measured.rank_secs if ran else None,
        "error": measured.error if ran else None,
        "run_secs": measured.run_secs,
        "speed": measured.speed,
        "build_secs": measured.build_secs,
        "measure_secs": measured.measure_secs,
        "detail": measured.detail,
        "cpu_model": None if origin is None else origin.cpu_model,
        "threads": None if origin is None else origin.threads,
        "versions": None if origin is None else list(origin.versions.items()),
        "machine": None if origin is None else list(origin.machine.items()),
        "trace": record.trace,
    }


def _type(pyarrow: Any, kind: str) -> Any:
    match kind:
        case "list<int64>":
            return pyarrow.list_(pyarrow.int64())
        case "list<float64>":
            return pyarrow.list_(pyarrow.float64())
        case "map<string, string>":
            return pyarrow.map_(pyarrow.string(), pyarrow.string())
        case _:
            return pyarrow.type_for_alias(kind)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Yield a path under another name. It is renamed to ``path`` if the block ends without an error."""
    if path.is_dir():
        raise RecordFileError(f"{path} is a folder", "give the name of a file in it")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        sync_file(part)
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        raise RecordFileError(f"{path} cannot be written: {error.strerror or error}", "choose another place") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
