"""The models that come with fleet-tune, as replays start from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from bench.result import BenchError
from bench.search.kept_runs import REPLAYED, Kind
from bench.search.replay_runs import Replayed
from fleet_tune.records.datasets.dataset import Dataset
from fleet_tune.runs.reusing.pretrained import BUILTIN_PATHS, data_sources, read_model
from policies.cost_models.protocol import CostModel


@cache
def shipped(name: str) -> CostModel:
    """The model of this name of :data:`BUILTIN_PATHS`."""
    return read_model(BUILTIN_PATHS[name])[0]


def refuse_taught(dataset: Path, measured: Dataset, names: Iterable[str]) -> None:
    """:class:`BenchError` where one of these models was trained on the dataset."""
    digest = data_sources("", measured).digest
    for name in sorted(set(names)):
        if any(digest == source.digest for source in read_model(BUILTIN_PATHS[name])[1].data):
            raise BenchError(f"'{name}' was trained on {dataset}: name another set with --dataset")


def begun_with(names: Iterable[str]) -> Kind[Replayed]:
    """Kept runs of one task that begin with these models, as the files are: of others nothing is found."""
    files = b"".join(BUILTIN_PATHS[name].read_bytes() for name in sorted(set(names)))
    name = f"pretrained, {hashlib.blake2b(files, digest_size=8).hexdigest()}"
    return Kind(name, REPLAYED.fields, REPLAYED.run)
