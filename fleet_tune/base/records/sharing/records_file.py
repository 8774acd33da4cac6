"""Files of exported records: JSON lines, each with its kind. The first one has the version of the format.

A line that is torn or of an unknown kind is reported and skipped; lines that refer to it are skipped too. A file whose
name ends in ``.gz`` is compressed with gzip, to a tenth of its size or less.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from fleet_tune.base.domain import Record, Task
from fleet_tune.base.errors import RecordFileError, UnreadableRecordError
from fleet_tune.base.records.files.atomic_file import sync_file, sync_folder
from fleet_tune.base.records.sharing.validation import checked_effort, checked_task, checked_unit
from fleet_tune.base.records.stores.codec import record_from_json, record_to_json
from fleet_tune.base.records.stores.origin import Effort, Origin, decode_origin, encode_origin
from fleet_tune.base.records.stores.store import class_unit

FORMAT = "fleet-tune records"
VERSION = 1
_PAGE_RECORDS = 1000
_MOST_LINE_BYTES = 64 * 2**20
_NEXT = "give a file that 'fleet-tune records export' wrote"


class RecordsFileWriter:
    """Writer of such a file in one step: the file gets its name when the block ends without an error.

    Everything that a record refers to is written before it. Raises :class:`RecordFileError` if it cannot be written. It
    is a target of :func:`fleet_tune.base.records.sharing.shared.copy_records`. Its unit for each device class is the
    first one that it gets for that class.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise RecordFileError(f"{path} is a folder", "give the name of a file in it")
        self.path = path
        self.records = 0
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._units: dict[str, float] = {}
        self._runs: set[tuple[str, str]] = set()
        self._uids: set[str] = set()

    def __enter__(self) -> Self:
        with self._told():
            self._file = _opened(self.path, self._part, "wb")
        try:
            self._write({"kind": "head", "format": FORMAT, "version": VERSION})
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._told():
                self._file.close()
                if kind is None:
                    sync_file(self._part)
                    os.replace(self._part, self.path)
                    sync_folder(self.path.parent)
        finally:
            self._part.unlink(missing_ok=True)

    def put_task(self, task: Task) -> None:
        """Write a task with its workload."""
        workload, name = task.workload, task.device_class.name
        body = {"hash": workload.hash, "name": workload.name, "flop": workload.flop, "module": workload.module}
        self._write({"kind": "task", **body, "class": name, "target": task.device_class.target, "weight": task.weight})

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        """Write the origins of a run's records, by device class."""
        for name, origin in origins.items():
            if (run_id, name) not in self._runs:
                self._runs.add((run_id, name))
                self._write({"kind": "run", "run": run_id, "class": name, "origin": json.loads(encode_origin(origin))})

    def lacking(self, efforts: Sequence[Effort]) -> list[Effort]:
        """Return all efforts: none is in the file yet."""
        return list(efforts)

    def put_efforts(self, efforts: Iterable[Effort]) -> None:
        """Write the efforts of runs."""
        for each in efforts:
            spent = [None if math.isinf(value) else value for value in (each.secs, each.trials)]
            line = {"kind": "effort", "task": each.task_id, "run": each.run_id, "secs": spent[0], "trials": spent[1]}
            self._write(line)

    def unit(self, name: str, secs: float) -> float:
        """Return the unit of ``name``: seconds of the probe at speed 1. It is ``secs`` if none was given before."""
        if name not in self._units:
            self._units[name] = secs
            self._write({"kind": "unit", "name": name, "secs": secs})
        return self._units[name]

    def add(self, records: Sequence[Record]) -> int:
        """Write the records that are not written yet, and return their number."""
        fresh = {each.uid: each for each in records if each.uid not in self._uids}
        with self._told():
            for record in fresh.values():
                self._file.write(b'{"kind": "record", "body": ' + record_to_json(record) + b"}\n")
        self._uids |= fresh.keys()
        self.records += len(fresh)
        return len(fresh)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._told():
            self._file.write(json.dumps(line).encode() + b"\n")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordFileError(
                f"{self.path} cannot be written: {error.strerror or error}", "choose another place"
            ) from error


class RecordsFile:
    """Content of such a file: a source of :func:`fleet_tune.base.records.sharing.shared.copy_records`.

    ``skipped`` has the lines that could not be read, with their numbers and reasons. It is complete once :meth:`pages`
    is over. Raises :class:`RecordFileError` if there is no such file, or one of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped: list[str] = []
        self._tasks: dict[str, Task] = {}
        self._origins: dict[tuple[str, str], Origin] = {}
        self._efforts: list[Effort] = []
        self._units: dict[str, float] = {}
        for number, line in self._lines():
            if number == 1:
                self._check_head(line)
            elif line is not None and line.get("kind") != "record":
                try:
                    self._take(line)
                except (KeyError, TypeError, ValueError, OverflowError, UnreadableRecordError) as error:
                    self._skip(number, f"{type(error).__name__}: {error}")

    def tasks(self, only: Collection[str] | None = None) -> list[Task]:
        """Return the tasks of the records. ``only``: those of these ids."""
        return [task for task in self._tasks.values() if only is None or task.id in only]

    def run_origins(self, only: Collection[str] | None = None) -> dict[tuple[str, str], Origin]:
        """Return the origins of the records of each run and device class. ``only``: of these runs."""
        return {run: origin for run, origin in self._origins.items() if only is None or run[0] in only}

    def efforts(self) -> list[tuple[Effort, Origin]]:
        """Return the efforts of runs, with the origins of their records."""
        known = ((each, self._origins.get((each.run_id, each.task_id.partition("@")[2]))) for each in self._efforts)
        return [(effort, origin) for effort, origin in known if origin is not None]

    def unit_secs(self, device_id: str, device_class: str) -> float | None:
        """Return the unit of a device, or else of its class: seconds of the probe at speed 1. ``None`` if the file has
        neither."""
        return self._units.get(device_id, self._units.get(class_unit(device_class)))

    def pages(self, cursor: int = 0) -> Iterator[list[Record]]:
        """Yield the records after the line ``cursor``, many at a time. Their ``seq`` is the number of their line."""
        page: list[Record] = []
        for number, line in self._lines(told=True):
            if number <= cursor or line is None or line.get("kind") != "record":
                continue
            try:
                page.append(record_from_json(json.dumps(line.get("body")).encode(), number))
            except UnreadableRecordError as error:
                self._skip(number, error.problem)
            if len(page) == _PAGE_RECORDS:
                yield page
                page = []
        if page:
            yield page

    def _lines(self, told: bool = False) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield the lines with their numbers; ``None`` for a line that is no JSON object. ``told``: true if such lines
        were reported before."""
        number = 0
        try:
            with _opened(self.path, self.path, "rb") as file:
                # A longer line comes in pieces, which count as torn lines. So no file takes more memory than this.
                for number, text in enumerate(iter(lambda: file.readline(_MOST_LINE_BYTES), b""), 1):
                    line: Any = None
                    with contextlib.suppress(ValueError, RecursionError):
                        line = json.loads(text)
                    if not isinstance(line, dict):
                        line = None
                        if not told and number > 1:
                            self._skip(number, "it is torn, or no line of such a file")
                    yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if number == 0:
                raise RecordFileError(f"{self.path} is no file of records: {error}", _NEXT) from error
            if not told:
                self._skip(number + 1, f"the file ends early: {error}")
        except OSError as error:
            raise RecordFileError(f"{self.path} cannot be read: {error.strerror or error}", _NEXT) from error
        if number == 0:
            raise RecordFileError(f"{self.path} is empty", _NEXT)

    def _check_head(self, line: dict[str, Any] | None) -> None:
        version = None if line is None or line.get("format") != FORMAT else line.get("version")
        if not isinstance(version, int):
            raise RecordFileError(f"{self.path} is no file of records", _NEXT)
        if version > VERSION:
            raise RecordFileError(
                f"{self.path} has version {version} and this fleet-tune reads up to version {VERSION}",
                "use the newer fleet-tune that wrote it",
            )

    def _take(self, line: dict[str, Any]) -> None:
        match line.get("kind"):
            case "task":
                texts = (_text(line, "hash"), _text(line, "name"), _text(line, "module"))
                names = (_text(line, "class"), _text(line, "target"))
                task = checked_task(*texts[:2], line["flop"], texts[2], *names, line["weight"])
                self._tasks[task.id] = task
            case "run":
                self._origins[_text(line, "run"), _text(line, "class")] = decode_origin(json.dumps(line["origin"]))
            case "effort":
                spent = (math.inf if line[name] is None else line[name] for name in ("secs", "trials"))
                self._efforts.append(checked_effort(_text(line, "task"), _text(line, "run"), *spent))
            case "unit":
                self._units[_text(line, "name")] = checked_unit(line["secs"])
            case kind:
                raise ValueError(f"a line of an unknown kind {kind!r}")

    def _skip(self, number: int, reason: str) -> None:
        self.skipped.append(f"line {number}: {reason}")


def _text(line: Mapping[str, Any], name: str) -> str:
    value = line[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    value.encode()  # raises for half of a surrogate pair
    return value


def _opened(named: Path, path: Path, mode: str) -> IO[bytes]:
    """Open the file at ``path``, with gzip if the name ``named`` ends in ``.gz``."""
    if named.suffix == ".gz":
        return gzip.open(path, mode)  # type: ignore[return-value]
    return path.open(mode)
