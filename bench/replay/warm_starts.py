"""Warm starts: the model that each method can begin with, of other tasks than those of a replay.

- ``fleet``: the model that comes along for it;
- ``pruner`` and ``moa-pruner``: the PaCM that comes along, which the first fine-tunes and the second adapts;
- a method whose own model reads what all tasks share (``autotvm``, ``ansor``, ``bansor``): its own kind of model,
  trained on the datasets of ``fleet``'s model, as the global one of AutoTVM's equation 4;
- any other (``adatune``, whose forest reads the knobs of one task): the model of ``fleet`` as the global one.

They have not all learned from the same: the PaCM was trained on fewer sets than the others, so that each column says
from how many candidates its model has learned (:func:`learned_from`).
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
    """The datasets of ``bench/data`` that the model of ``fleet`` was trained on.

    Raises :class:`BenchError` if one of them is not there.
    """
    wanted = {source.digest: source.name for source in read_model(BUILTIN_PATHS[BUILTIN])[1].data}
    found = {data_sources("", read(path)).digest: path for path in sorted(folder.rglob("*.ftd"))}
    missing = [name for digest, name in wanted.items() if digest not in found]
    if missing:
        raise BenchError(f"{folder} lacks a dataset that the shipped model was trained on: {missing[0]}")
    return tuple(path for digest, path in found.items() if digest in wanted)


def warm_starts(methods: Mapping[str, Method], sets: Sequence[Path], folder: Path) -> dict[str, Path]:
    """The file of the model that each method starts from, without methods that have no cost model.

    ``sets``: datasets that teach a method's own model; ``folder``: where such models are written.
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
    """The kind of model that is trained on the sets for the method; None if it begins with a shipped one, or none."""
    training = method.training
    if training is None or method.starts_from or training.model.kind == PacmModel.KIND:
        return None
    return training.teaches


def shipped_start(method: Method) -> str:
    """The name of the shipped model that a method with a cost model begins with, if nothing is taught for it."""
    pacm = method.training is not None and method.training.model.kind == PacmModel.KIND
    return method.starts_from or (BUILTIN_PACM if pacm else BUILTIN)


def teach(entry: CostModelEntry, sets: Sequence[Path], folder: Path) -> Path:
    """Train a model of this kind on all tasks of the sets and return its file in ``folder``.

    Raises :class:`BenchError` if nothing in the sets ran.
    """
    tasks: list[TaskData] = [data for each in sets for data in read(each)]
    model = general_prior(tasks, 0, entry, from_analyzer=False)
    if model is None:
        raise BenchError(f"no candidate of {', '.join(each.name for each in sets)} ran: give other sets")
    path = folder / f"{entry.name}{TAUGHT}"
    path.write_bytes(summed(model).save())
    return path


def learned_from(start: Path, sets: Sequence[Path]) -> int:
    """Number of candidates that the model of this file learned from: by its manifest, or all of the ``sets`` if it was
    taught."""
    if start.suffix == TAUGHT:
        return sum(len(data) for each in sets for data in read(each))
    return sum(source.candidates for source in read_model(start)[1].data)


def summed(model: CostModel) -> CostModel:
    """The prior as a method has to begin with it for the sum of AutoTVM's equation 4.

    A network of the method's own kind would be fine-tuned. AutoTVM's (TreeGRU) is wrapped: as a global model that has
    no local one yet it stays as it is, and a network of the task's own is added. Pruner's are fine-tuned, as in its
    paper.
    """
    return GlobalLocalModel(model) if model.KIND in (TREE_GRU.kind, TREE_GRU_REGRESSION.kind) else model
