"""A dataset: measured candidates of several tasks with all that a policy needs, in one compact file.

It is read without TVM: the sketches come with their symbolic descriptions, so that searches, cost models and analyses
run offline. The workloads' TVM modules are in it too, so that the descriptions can be derived anew when they improve
(``fleet-tune dataset refresh``).

The file: one line of ASCII, ``fleet-tune-dataset`` and the format's version, then a zlib stream (which carries a
checksum) of one msgpack map. Fields are found by name, unknown ones are ignored.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from fleet_tune.base.domain import Outcome
from fleet_tune.base.errors import DatasetError
from fleet_tune.base.records.datasets.dataset_codec import (
    decode_array,
    decode_sketches,
    decode_value,
    encode_array,
    encode_sketches,
    encode_value,
)
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.sketch import Sketch
from fleet_tune.base.task_data import OUTCOMES, Dataset, Integers, TaskData

FORMAT_VERSION = 2
"""In version 1 every sketch had its own statements, although many variants have the same ones."""

_MAGIC = b"fleet-tune-dataset "
_HEADER_BYTES = 64
_MAX_BYTES = 1 << 31  # of the unpacked map: a larger one is no dataset of ours


def save(dataset: Dataset, path: Path) -> None:
    """Write the file in one step: a reader at the same time finds the old file or the new one.

    Raise :class:`DatasetError` if it cannot be written.
    """
    try:
        write_atomically(path, encode(dataset))
    except OSError as error:
        raise DatasetError(
            f"cannot write the dataset {path}: {os.strerror(error.errno or 0)}", "choose another place for it"
        ) from error


def load(path: Path) -> Dataset:
    """Read a dataset. Raise :class:`DatasetError` if it is missing, damaged, or of a newer format."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"cannot read the dataset {path}: {os.strerror(error.errno or 0)}",
            "give the path of a file that 'fleet-tune dataset' wrote",
        ) from error
    return decode(content, str(path))


def encode(dataset: Dataset) -> bytes:
    """Return the bytes of a dataset's file."""
    body = {
        "model": dataset.network,  # a stored name: older files have it
        "fingerprints": [encode_value(fingerprint) for fingerprint in dataset.fingerprints],
        "outcomes": [outcome.value for outcome in OUTCOMES],
        "tasks": [_task_fields(data) for data in dataset.tasks],
    }
    header = _MAGIC + str(FORMAT_VERSION).encode() + b"\n"
    return header + zlib.compress(msgpack.packb(body), 9)


def decode(content: bytes, name: str) -> Dataset:
    """Return the dataset in the bytes of a file; ``name`` is for messages. Raise :class:`DatasetError`."""
    header, newline, packed = content[:_HEADER_BYTES].partition(b"\n")
    version = header.removeprefix(_MAGIC)
    if not content.startswith(_MAGIC) or not newline or not version.isdigit():
        if content and (_MAGIC.startswith(content[:_HEADER_BYTES]) or (content.startswith(_MAGIC) and not newline)):
            raise _damaged(name, "it ends early")
        raise DatasetError(f"{name} is not a dataset of fleet-tune", "give a file that 'fleet-tune dataset' wrote")
    if int(version) > FORMAT_VERSION:
        raise DatasetError(
            f"the dataset {name} has format {int(version)} and this fleet-tune reads up to {FORMAT_VERSION}",
            "use the newer fleet-tune that wrote it",
        )
    packed = content[len(header) + 1 :]
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(packed, _MAX_BYTES)
        if not unpacker.eof:
            raise _damaged(name, "it ends early" if len(body) < _MAX_BYTES else "it is too large")
        return _dataset(msgpack.unpackb(body))
    except (
        zlib.error,
        msgpack.UnpackException,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ) as error:
        raise _damaged(name, f"{type(error).__name__}: {error}") from error


def _damaged(name: str, reason: str) -> DatasetError:
    return DatasetError(f"the dataset {name} is damaged: {reason}", "restore it from a copy, or collect it again")


def _task_fields(data: TaskData) -> dict[str, Any]:
    details = {text: at for at, text in enumerate(sorted(set(data.details)))}
    return {
        "task": encode_value(data.task),
        "abstraction": encode_value(data.abstraction),
        "described": encode_sketches(data.sketches),
        "sketch_of": encode_array(data.sketch_of),
        "decisions": [encode_array(matrix) for matrix in data.decisions],
        "run_secs": encode_array(data.run_secs),
        # Seconds around a trial: float32 holds them to a tenth of a microsecond.
        "build_secs": encode_array(data.build_secs.astype(np.float32)),
        "measure_secs": encode_array(data.measure_secs.astype(np.float32)),
        "outcome": encode_array(data.outcome),
        "details": list(details),
        "detail_of": encode_array(np.array([details[text] for text in data.details], dtype=np.int64)),
    }


def _dataset(body: Mapping[str, Any]) -> Dataset:
    # The table of outcomes is the file's own, so that numbers keep their meaning when outcomes are added here.
    outcome = np.array([OUTCOMES.index(Outcome(value)) for value in body["outcomes"]], dtype=np.int64)
    return Dataset(
        network=body["model"],
        fingerprints=tuple(decode_value(value) for value in body["fingerprints"]),
        tasks=tuple(_task_data(fields, outcome) for fields in body["tasks"]),
    )


def _sketches(fields: Mapping[str, Any]) -> tuple[Sketch, ...]:
    if "described" in fields:
        return decode_sketches(fields["described"])
    return tuple(decode_value(value) for value in fields["sketches"])  # format 1


def _task_data(fields: Mapping[str, Any], outcome: Integers) -> TaskData:
    details = fields["details"]
    return TaskData(
        task=decode_value(fields["task"]),
        abstraction=decode_value(fields["abstraction"]),
        sketches=_sketches(fields),
        sketch_of=decode_array(fields["sketch_of"]),
        decisions=tuple(decode_array(value) for value in fields["decisions"]),
        run_secs=decode_array(fields["run_secs"]),
        build_secs=decode_array(fields["build_secs"]).astype(np.float64),
        measure_secs=decode_array(fields["measure_secs"]).astype(np.float64),
        outcome=outcome[decode_array(fields["outcome"])],
        details=tuple(details[at] for at in decode_array(fields["detail_of"])),
    )
