"""Cache on disk for the sketches of tasks (:mod:`devices.host.file_cache`): a second run of a network describes nothing
again.

The key is a hash of everything that the sketches depend on: the program, the target, imported traces, kernels over
fewer rows, the versions of TVM, the code of ``devices``, and the code of a description's types and encoding. A file is
zlib-compressed msgpack; :mod:`fleet_tune.base.records.datasets.dataset_codec` encodes the sketches.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgpack  # type: ignore[import-untyped]

from devices.host.file_cache import FileCache, key_of, source_digest, tvm_versions
from fleet_tune.base import sketch
from fleet_tune.base.domain import Task
from fleet_tune.base.records.datasets import dataset_codec
from fleet_tune.base.sketch import Sketch

_BROKEN = (zlib.error, msgpack.UnpackException, ValueError, TypeError, KeyError, IndexError)


@dataclass(frozen=True)
class TaskDescription:
    """The sketches of a task."""

    sketches: tuple[Sketch, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """Rule and reason of each sketch that TVM could not schedule. The rule is empty if the reason is why the task has
    no sketch at all."""

    @classmethod
    def of(cls, sketches: Sequence[Sketch], left_out: tuple[tuple[str, str], ...]) -> TaskDescription:
        """Return the description of a task from separately described sketches.

        The sketches of a task compete by the same measure of time. If all sketches with statements are described over
        fewer rows, this is the time over all numbers of rows. If one is not, it is the time for the most rows, and the
        fewer rows are removed from all sketches.
        """
        if not all(each.fewer_rows for each in sketches if each.statements):
            sketches = [replace(each, fewer_rows=()) if each.fewer_rows else each for each in sketches]
        return cls(tuple(sketches), left_out)


class DescriptionCache:
    """Descriptions in ``folder``, which may also hold built kernels. None to store nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._files = None if folder is None else FileCache(folder, ".sketches", "descriptions of sketches")

    def find(self, task: Task) -> TaskDescription | None:
        """Return the stored description of ``task``; None if there is none that can be read."""
        body = self._files.find(_key(task)) if self._files else None
        if body is None:
            return None
        try:
            value = msgpack.unpackb(zlib.decompress(body))
            left_out = tuple((str(rule), str(reason)) for rule, reason in value["left_out"])
            return TaskDescription(dataset_codec.decode_sketches(value), left_out)
        except _BROKEN:
            return None

    def store(self, task: Task, described: TaskDescription) -> None:
        """Store the sketches of ``task``. For a task with fewer rows, the sketches are also stored without these, for
        the same task without fewer rows: tasks in a record store have none, and their records are for the most rows."""
        if self._files is None:
            return
        self._files.store(_key(task), _packed(described))
        alone = replace(task, fewer_rows=())
        if task.fewer_rows and self._files.find(_key(alone)) is None:
            sketches = tuple(replace(each, fewer_rows=()) for each in described.sketches)
            self._files.store(_key(alone), _packed(replace(described, sketches=sketches)))


def _packed(described: TaskDescription) -> bytes:
    value = {**dataset_codec.encode_sketches(described.sketches), "left_out": described.left_out}
    return zlib.compress(msgpack.packb(value), 1)


def _key(task: Task) -> str:
    versions = json.dumps(tvm_versions(), sort_keys=True)
    program = [task.workload.hash, task.workload.module, task.device_class.target]
    fewer_rows = [text for each in task.fewer_rows for text in (each.module, repr(each.work))]
    return key_of([versions, _code(), *program, *task.imported, *fewer_rows])


@cache
def _code() -> str:
    """Return a hash of the code on which the content and encoding of a description depend."""
    files = [Path(str(module.__file__)).read_bytes() for module in (sketch, dataset_codec)]
    return source_digest() + hashlib.blake2b(b"\0".join(files), digest_size=16).hexdigest()
