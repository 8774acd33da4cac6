"""Pre-trained cost models as files, and the models that come with fleet-tune."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from fleet_tune.base.errors import ModelFileError
from fleet_tune.base.records.datasets import model_file
from fleet_tune.base.records.datasets.model_file import DataSource, Manifest, ModelFile
from fleet_tune.base.records.datasets.sources import BUILTIN, BUILTIN_PACM, is_builtin
from fleet_tune.base.task_data import TaskData
from fleet_tune.base.version import __version__
from policies.cost_models import model_bytes
from policies.cost_models.model_bytes import SavedState
from policies.cost_models.protocol import CostModel
from policies.cost_models.registry import load_model
from policies.features.views import FEATURE_VERSION

_DATA = Path(__file__).parents[2] / "data"
BUILTIN_PATH = _DATA / "x86-cpu.safetensors"
BUILTIN_PATHS: Mapping[str, Path] = {BUILTIN: BUILTIN_PATH, BUILTIN_PACM: _DATA / "x86-cpu-pacm.safetensors"}


def to_file(
    model: CostModel, device_kind: str, data: Iterable[DataSource], metrics: Mapping[str, float] | None = None
) -> ModelFile:
    """Return the file of a model that was trained for a kind of device, ``cpu`` or ``cuda``."""
    saved = model_bytes.unpack(model.save())
    manifest = Manifest(
        model=saved.kind,
        header=dict(saved.header),
        feature_version=FEATURE_VERSION,
        device_kind=device_kind,
        data=tuple(data),
        metrics=dict(metrics or {}),
        created_by=f"fleet-tune {__version__}",
    )
    return ModelFile(manifest, saved.arrays)


def from_file(file: ModelFile, path: Path) -> CostModel:
    """Return the model of a file. ``path`` is for messages. Raises :class:`ModelFileError` if the arrays do not fit the
    model that the manifest names."""
    try:
        return load_model(model_bytes.pack(SavedState(file.manifest.model, file.manifest.header, file.arrays)))
    except ValueError as error:
        raise ModelFileError(
            f"the model {path} is not one that fleet-tune can use: {error}",
            "give a file that 'fleet-tune model' wrote, or train it anew with 'fleet-tune model pretrain'",
        ) from error


def read_model(path: Path) -> tuple[CostModel, Manifest]:
    """Return the model at ``path`` (a file, a folder with a model, or a name of :data:`BUILTIN_PATHS`), and its
    manifest. Raises ModelFileError."""
    if is_builtin(path):
        path = BUILTIN_PATHS[str(path)]
    file = model_file.load(path, FEATURE_VERSION)
    return from_file(file, path), file.manifest


def data_sources(name: str, tasks: Iterable[TaskData]) -> DataSource:
    """Return the manifest's entry for training data: the name of its file, and a digest of candidates and costs."""
    state = hashlib.blake2b(digest_size=16)
    count, classes = 0, set()
    for data in tasks:
        state.update(data.task.id.encode())
        for matrix in data.decisions:
            state.update(np.ascontiguousarray(matrix, dtype="<i8").tobytes())
        state.update(np.ascontiguousarray(data.cost_secs, dtype="<f8").tobytes())
        count += len(data)
        classes.add(data.task.device_class.name)
    return DataSource(name, state.hexdigest(), count, tuple(sorted(classes)))
