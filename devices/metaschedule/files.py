"""The two files of a MetaSchedule database: JSON lines.

A line of workloads is ``[structural hash, base64 of the module's JSON text]``, a line of records ``[number of the
workload, [trace, run seconds, target, arguments]]``. A line that is cut off or cannot be read is skipped and reported
with its number. Records that refer to a skipped workload are skipped too.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir.analysis import estimate_tir_flops

from devices.networks.tasks.extraction import normal_form, workload_hash
from devices.targets import resolve_target
from fleet_tune.base.domain import Workload
from fleet_tune.base.errors import TransferError, UserError
from fleet_tune.base.records.datasets.sources import METASCHEDULE_FILES

WORKLOADS, RECORDS = METASCHEDULE_FILES

_SHOWN = 200
ABOUT = "fleet_tune.json"
"""Third file of a database that we wrote. It holds the device class of the database, for which TVM's format has no
field."""

FAILED_SECS = 1e9
"""Run times from this on mark a candidate that did not run; MetaSchedule writes 1e10."""

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError)
"""Errors that TVM and our readers raise for a text that cannot be read."""


@dataclass(frozen=True)
class DatabaseRecord:
    """A record of a database."""

    number: int
    """Line number of the record."""
    workload: Workload
    target: str
    """Canonical target."""
    trace: Any = field(repr=False)
    run_secs: tuple[float, ...]
    """Positive; :data:`FAILED_SECS` and more for a candidate that did not run."""


class DatabaseFiles:
    """The database in a folder. Raises :class:`TransferError` if the files cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Skipped lines, each with file, number and reason; complete once the iterator of :meth:`records` is exhausted.
        self.skipped: list[str] = []

    def records(self) -> Iterator[DatabaseRecord]:
        """Yield the records that can be read, in the order of their lines."""
        workloads = [self._workload(number, line) for number, line in self._lines(WORKLOADS)]
        for number, line in self._lines(RECORDS):
            if line is None:
                continue
            try:
                place, (trace, run_secs, target, _) = line
                if type(place) is not int or not 0 <= place < len(workloads):
                    raise ValueError(f"there is no workload {place}")
                workload = workloads[place]
                if workload is None:
                    raise ValueError(f"the workload of line {place + 1} cannot be read")
                if not isinstance(trace, list) or not trace:
                    raise ValueError("it has no trace")
                if not run_secs or not all(isinstance(secs, int | float) and 0 < secs < math.inf for secs in run_secs):
                    raise ValueError("it was not measured")
                read = DatabaseRecord(number, workload, resolve_target(target), trace, tuple(map(float, run_secs)))
            except UserError as error:  # a target that this TVM does not know
                self._skip(RECORDS, number, error.problem)
            except REFUSALS as error:
                self._skip(RECORDS, number, str(error) or type(error).__name__)
            else:
                yield read

    def _workload(self, number: int, line: Any) -> Workload | None:
        if line is None:
            return None
        try:
            _, text = line
            content = base64.b64decode(text, validate=True)
            # TVM writes the length of the text, in eight bytes, before the text.
            module = tvm.ir.load_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode())
            if not isinstance(module, tvm.IRModule):
                raise TypeError("it is no module")
            return _as_ours(module)
        except REFUSALS as error:
            self._skip(WORKLOADS, number, f"a workload that cannot be read: {type(error).__name__}")
            return None

    def _lines(self, name: str) -> Iterator[tuple[int, Any]]:
        """Yield each line number with the value of the line; None for a line that is not JSON."""
        path = self.folder / name
        try:
            with path.open("rb") as file:
                for number, text in enumerate(file, 1):
                    try:
                        yield number, json.loads(text)
                    except (ValueError, RecursionError):
                        if text.strip():
                            self._skip(name, number, "it is cut off, or not JSON")
                        yield number, None
        except OSError as error:
            raise TransferError(
                f"{path} cannot be read: {error.strerror or error}", "give the folder of a MetaSchedule database"
            ) from error

    def _skip(self, name: str, number: int, reason: str) -> None:
        self.skipped.append(f"{name} line {number}: {' '.join(reason.split())[:_SHOWN]}")


def class_written(folder: Path) -> str:
    """Return the device class of a database that we wrote; an empty text if no class is stored."""
    try:
        name = json.loads((folder / ABOUT).read_bytes())["device_class"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""


def _as_ours(module: tvm.IRModule) -> Workload:
    names = [variable.name_hint for variable in module.functions]
    function = normal_form(module["main"] if "main" in names else module[names[0]])
    kernel = tvm.IRModule({"main": function})
    digest = workload_hash(function)
    return Workload(digest, hash_name(digest), float(estimate_tir_flops(kernel)), tvm.ir.save_json(kernel))


def hash_name(digest: str) -> str:
    """Return a name for a workload of which only the hash is known."""
    return f"workload {digest[:8]}"
