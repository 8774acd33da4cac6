"""Warm starts: the model of other tasks that each method can start from in a replay.

- ``fleet``: the model that fleet-tune ships for it;
- ``pruner`` and ``moa-pruner``: the shipped PaCM, which ``pruner`` fine-tunes and ``moa-pruner`` adapts;
- a method whose own model reads features that all tasks share (``autotvm``, ``ansor``, ``bansor``): its own kind of
  model, trained on the datasets of ``fleet``'s model, as the global model of AutoTVM's equation 4;
- any other method (``adatune``, whose forest reads the knobs of one task): the model of ``fleet`` as the global model.

The models have not all learned from the same records: the PaCM was trained on fewer datasets than the others. So each
column has the number of candidates that its model has learned from (:func:`learned_from`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.datasets import DATA, read
from bench.models.laboratory.registry import TREE_GRU, TREE_GRU_REGRESSION
from bench.replay.start_models import TAUGHT, start_of
from bench.result import BenchError
from fleet_tune.base.records.datasets.sources import BUILTIN, BUILTIN_PACM
from fleet_tune.base.task_data import TaskData
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, data_sources, read_model
from policies.cost_models.architectures import PacmModel
from policies.cost_models.global_local import GlobalLocalModel
from policies.cost_models.knowledge import general_prior
from policies.cost_models.protocol import CostModel
from policies.cost_models.registry import CostModelEntry
from policies.search.methods import Method


def teaching_sets(folder: Path = DATA) -> tuple[Path, ...]:
    """Return the files of the datasets that the model of ``fleet`` was trained on. ``folder`` is searched with its
    subfolders.

    Raises :class:`BenchError` if one of them is missing.
    """
    wanted = {source.digest: source.name for source in read_model(BUILTIN_PATHS[BUILTIN])[1].data}
    found = {data_sources("", read(path)).digest: path for path in sorted(folder.rglob("*.ftd"))}
    missing = [name for digest, name in wanted.items() if digest not in found]
    if missing:
        raise BenchError(f"{folder} lacks a dataset that the shipped model was trained on: {missing[0]}")
    return tuple(path for digest, path in found.items() if digest in wanted)


def warm_starts(methods: Mapping[str, Method], sets: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Return the file of the model that each method starts from. Methods without a cost model are left out.

    ``sets``: datasets to train a method's own kind of model on; ``folder``: folder for these models.
    """
    starts: dict[str, Path] = {}
    taught: dict[str, Path] = {}
    for name, method in methods.items():
        own = taught_kind(method)
        if own is not None:
            if own.name not in taught:
                taught[own.name] = teach(own, sets, folder)
            starts[name] = taught[own.name]
        elif method.training is not None:
            starts[name] = start_of(shipped_start(method), None)
    return starts


def taught_kind(method: Method) -> CostModelEntry | None:
    """Return the kind of model to train on the datasets for the method; None if it starts from a shipped model or has
    no cost model."""
    training = method.training
    if training is None or method.starts_from or training.model.kind == PacmModel.KIND:
        return None
    return training.teaches


def shipped_start(method: Method) -> str:
    """Return the name of the shipped model that a method with a cost model starts from, if none is trained for it."""
    pacm = method.training is not None and method.training.model.kind == PacmModel.KIND
    return method.starts_from or (BUILTIN_PACM if pacm else BUILTIN)


def teach(entry: CostModelEntry, sets: Sequence[Path], folder: Path) -> Path:
    """Train a model of this kind on all tasks of the datasets, write it to ``folder`` and return its file.

    Raises :class:`BenchError` if the datasets have no successful record.
    """
    tasks: list[TaskData] = [data for each in sets for data in read(each)]
    model = general_prior(tasks, 0, entry, from_analyzer=False)
    if model is None:
        raise BenchError(f"no candidate of {', '.join(each.name for each in sets)} ran: give other sets")
    path = folder / f"{entry.name}{TAUGHT}"
    path.write_bytes(summed(model).save())
    return path


def learned_from(start: Path, sets: Sequence[Path]) -> int:
    """Return the number of candidates that the model in a file has learned from: all of the ``sets`` for a model that
    :func:`teach` wrote, else the number in the file's manifest."""
    if start.suffix == TAUGHT:
        return sum(len(data) for each in sets for data in read(each))
    return sum(source.candidates for source in read_model(start)[1].data)


def summed(model: CostModel) -> CostModel:
    """Return the prior in the form from which a method learns the sum of AutoTVM's equation 4.

    A method fine-tunes a prior network of its own kind. So AutoTVM's network (TreeGRU) is wrapped as a global model
    without a local one: it stays unchanged, and a network of the task is added to it. Pruner's networks are not
    wrapped: they are fine-tuned, as in its paper.
    """
    return GlobalLocalModel(model) if model.KIND in (TREE_GRU.kind, TREE_GRU_REGRESSION.kind) else model
