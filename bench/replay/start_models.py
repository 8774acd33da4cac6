"""Models that replays start from: those that fleet-tune ships, or a given file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from bench.inputs import note_input
from bench.models.laboratory import load_model
from bench.replay.replay_runs import Replayed
from bench.replay.run_cache import REPLAYED, Kind
from bench.result import BenchError
from fleet_tune.base.errors import UserError
from fleet_tune.base.task_data import Dataset
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, data_sources, read_model
from policies.cost_models.protocol import CostModel

TAUGHT = ".model"
"""Suffix of a file with only the saved bytes of a model, of any kind."""


@cache
def model_at(path: Path) -> CostModel:
    """Return the model in a file of 'fleet-tune model pretrain', or in a file that was written for a replay
    (:data:`TAUGHT`)."""
    return load_model(path.read_bytes()) if path.suffix == TAUGHT else read_model(path)[0]


def start_of(name: str, given: Path | None) -> Path:
    """Return the file of the model for a method that starts from the model ``name``: ``given``, or the shipped file if
    that is None."""
    return note_input(BUILTIN_PATHS[name] if given is None else given.absolute())


def refuse_training_data(dataset: Path, measured: Dataset, paths: Iterable[Path]) -> None:
    """Raise :class:`BenchError` if one of the models at ``paths`` was trained on the dataset, or is not a model.

    ``measured``: content of the file ``dataset``.
    """
    digest = data_sources("", measured).digest
    for path in sorted(set(paths)):
        try:
            sources = read_model(path)[1].data
        except UserError as error:
            raise BenchError(str(error)) from error
        if any(digest == source.digest for source in sources):
            raise BenchError(f"{path.name} was trained on {dataset}: name another set with --dataset")


def started_from(paths: Iterable[Path]) -> Kind[Replayed]:
    """Return the kind of cached runs of one task that start from these models. The kind changes with the content of the
    files."""
    files = b"".join(path.read_bytes() for path in sorted(set(paths)))
    name = f"pretrained, {hashlib.blake2b(files, digest_size=8).hexdigest()}"
    return Kind(name, REPLAYED.fields, REPLAYED.run)
