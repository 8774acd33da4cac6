"""Files of pre-trained cost models: :mod:`fleet_tune.base.array_codec` with a manifest.

The manifest says what kind of model it is, the version of the features that it reads, its training data and its
quality. A damaged file is refused, and so is one for another version of the features."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fleet_tune.base import array_codec
from fleet_tune.base.errors import ModelFileError
from fleet_tune.base.records.datasets.sources import MODEL_SUFFIX
from fleet_tune.base.records.files.atomic_file import write_atomically

_MAX_BYTES = 1 << 28  # a cost model of ours has under a megabyte


@dataclass(frozen=True)
class DataSource:
    """A part of the training data."""

    name: str
    digest: str
    """Digest of the candidates and their costs."""
    candidates: int
    """Number of candidates."""
    device_classes: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """Description of a model in its file."""

    model: str
    """Kind of model."""
    header: Mapping[str, Any]
    """Plain values of the model."""
    feature_version: int
    """Version of the features that it was trained on."""
    device_kind: str
    """``cpu`` or ``cuda``."""
    data: tuple[DataSource, ...]
    """Training data."""
    metrics: Mapping[str, float]
    """Figures by name."""
    created_by: str


@dataclass(frozen=True, eq=False)
class ModelFile:
    """Arrays by name, with the manifest."""

    manifest: Manifest
    arrays: Mapping[str, NDArray[Any]]


def save(file: ModelFile, path: Path) -> None:
    """Write the file in one step. Raise :class:`ModelFileError` if it cannot be written."""
    try:
        write_atomically(path, encode(file))
    except OSError as error:
        raise ModelFileError(
            f"cannot write the model {path}: {os.strerror(error.errno or 0)}", "choose another place for it with --out"
        ) from error


def load(path: Path, feature_version: int) -> ModelFile:
    """Read a model file, or the only one in a folder.

    Raise :class:`ModelFileError` for a file that is no model file, is damaged, or was trained on another version of the
    features than ``feature_version``.
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
    """Return the bytes of a model file."""
    return array_codec.encode(dataclasses.asdict(file.manifest), file.arrays)


def decode(content: bytes, path: Path, feature_version: int) -> ModelFile:
    """Return the model in the bytes of a file; ``path`` is for messages. Raise :class:`ModelFileError`."""
    try:
        fields, arrays = array_codec.decode(content)
    except array_codec.NewerFormatError as error:
        raise ModelFileError(
            f"the model {path} cannot be read: {error}", "use the newer fleet-tune that wrote it"
        ) from error
    except ValueError as error:
        raise _not_ours(path, str(error)) from error
    try:
        manifest = _manifest(fields)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
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


def _not_ours(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(
        f"{path} is not a model of fleet-tune that can be used: {reason}",
        "give a file that 'fleet-tune model' wrote, or write it again",
    )
