"""Files of pre-trained cost models: safetensors with a manifest, and nothing that is run when it is read.

A file holds arrays by name, and the manifest as JSON text in the safetensors header: what kind of model it is, the
version of the features that it reads, the data that it was trained on, and how good it was found to be. A digest over
all arrays and the manifest's other fields is part of it: a file that was cut off, altered or put together of two is
refused, and so is one of another version of the features. What the arrays mean is for
:mod:`policies.cost_models.registry` to say."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from fleet_tune.errors import ModelFileError
from fleet_tune.records.atomic_file import write_atomically
from fleet_tune.records.sources import MODEL_SUFFIX

FORMAT_VERSION = 1

_MANIFEST = "fleet_tune.manifest"
_MAX_BYTES = 1 << 28  # a cost model of ours has under a megabyte
_HEADER_BYTES = 8


@dataclass(frozen=True)
class DataSource:
    """A part of the training data. ``digest``: of the candidates and their costs; ``candidates``: their number."""

    name: str
    digest: str
    candidates: int
    device_classes: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """What a model file says of its model.

    ``model``: the kind of model; ``header``: its plain values; ``feature_version``: of the features that it was trained
    on; ``device_kind``: ``cpu`` or ``cuda``; ``data``: what it was trained on; ``metrics``: figures by name.
    """

    model: str
    header: Mapping[str, Any]
    feature_version: int
    device_kind: str
    data: tuple[DataSource, ...]
    metrics: Mapping[str, float]
    created_by: str


@dataclass(frozen=True, eq=False)
class ModelFile:
    """Arrays by name, with the manifest."""

    manifest: Manifest
    arrays: Mapping[str, NDArray[Any]]


def save(file: ModelFile, path: Path) -> None:
    """Write the file in one step. Raises :class:`ModelFileError` where it cannot be written."""
    try:
        write_atomically(path, encode(file))
    except OSError as error:
        raise ModelFileError(
            f"cannot write the model {path}: {os.strerror(error.errno or 0)}", "choose another place for it with --out"
        ) from error


def load(path: Path, feature_version: int) -> ModelFile:
    """Read a model file, or the only one in a folder.

    Raises :class:`ModelFileError` for a file that is none of ours, damaged, or trained on other features than those of
    ``feature_version``.
    """
    found = path
    if path.is_dir():
        inside = sorted(path.glob(f"*{MODEL_SUFFIX}"))
        if len(inside) != 1:
            raise ModelFileError(f"{path} has {len(inside)} model files", "give the path of one of them")
        found = inside[0]
    try:
        if found.stat().st_size > _MAX_BYTES:
            raise _not_ours(found, "it is too large")
        content = found.read_bytes()
    except OSError as error:
        raise ModelFileError(
            f"cannot read the model {found}: {os.strerror(error.errno or 0)}",
            "give the path of a file that 'fleet-tune model' wrote",
        ) from error
    return decode(content, found, feature_version)


def encode(file: ModelFile) -> bytes:
    """The bytes of a model file."""
    arrays = {name: np.ascontiguousarray(values) for name, values in file.arrays.items()}
    fields = {"format": FORMAT_VERSION, **dataclasses.asdict(file.manifest)}
    fields["digest"] = _digest(fields, arrays)
    return save_arrays(arrays, {_MANIFEST: json.dumps(fields, sort_keys=True)})


def decode(content: bytes, path: Path, feature_version: int) -> ModelFile:
    """The model in the bytes of a file; ``path`` is for messages. Raises :class:`ModelFileError`."""
    try:
        arrays = load_arrays(content)
        length = int.from_bytes(content[:_HEADER_BYTES], "little")
        header = json.loads(content[_HEADER_BYTES : _HEADER_BYTES + length])
    except (SafetensorError, ValueError, KeyError) as error:
        raise _not_ours(path, f"no whole safetensors file ({error})") from error
    try:
        fields = json.loads(header["__metadata__"][_MANIFEST])
        if fields["format"] > FORMAT_VERSION:
            raise ModelFileError(
                f"the model {path} has format {fields['format']} and this fleet-tune reads up to {FORMAT_VERSION}",
                "use the newer fleet-tune that wrote it",
            )
        digest = fields.pop("digest")
        if digest != _digest(fields, arrays):
            raise _not_ours(path, "its digest differs: the file was altered")
        manifest = _manifest(fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_ours(path, f"its manifest is missing or wrong ({error!r})") from error
    if manifest.feature_version != feature_version:
        raise ModelFileError(
            f"the model {path} was trained on version {manifest.feature_version} of the features, and this fleet-tune "
            f"computes version {feature_version}",
            "train it anew with 'fleet-tune model pretrain'",
        )
    return ModelFile(manifest, arrays)


def _manifest(fields: Mapping[str, Any]) -> Manifest:
    data = tuple(
        DataSource(str(each["name"]), str(each["digest"]), int(each["candidates"]), tuple(each["device_classes"]))
        for each in fields["data"]
    )
    return Manifest(
        model=str(fields["model"]),
        header=dict(fields["header"]),
        feature_version=int(fields["feature_version"]),
        device_kind=str(fields["device_kind"]),
        data=data,
        metrics={str(name): float(value) for name, value in fields["metrics"].items()},
        created_by=str(fields["created_by"]),
    )


def _digest(fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Of the manifest's fields and of every array with its name, type and shape."""
    state = hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        values = arrays[name]
        state.update(f"\n{name} {values.dtype.str} {values.shape}\n".encode())
        state.update(np.ascontiguousarray(values).tobytes())
    return state.hexdigest()


def _not_ours(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(
        f"{path} is not a model of fleet-tune that can be used: {reason}",
        "give a file that 'fleet-tune model' wrote, or write it again",
    )
