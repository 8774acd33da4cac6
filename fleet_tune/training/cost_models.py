"""Work of ``fleet-tune model``: train models on measured candidates, and report their quality."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fleet_tune.base.errors import ModelFileError, TransferError, UserError
from fleet_tune.base.records.datasets import model_file
from fleet_tune.base.records.datasets.model_file import DataSource, Manifest
from fleet_tune.base.records.datasets.sources import MODEL_SUFFIX, is_builtin
from fleet_tune.base.task_data import TaskData
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, data_sources, read_model, to_file
from fleet_tune.runs.transfer.transfer_prior import TransferSource, read_source
from policies.cost_models.boosted import TRANSFERRED, InvariantTreesModel
from policies.cost_models.global_local import GlobalLocalModel, transferable
from policies.cost_models.knowledge import Examples, general_examples
from policies.cost_models.moa import MomentumModel, copied
from policies.cost_models.neural import NeuralModel
from policies.cost_models.protocol import CostModel, targets
from policies.cost_models.rank_quality import rank_correlation, top_k
from policies.cost_models.registry import BOOSTED_INVARIANT, COST_MODELS, CostModelEntry, load_model, problem_of
from policies.features.views import FEATURE_VERSION

PRETRAINABLE = tuple(name for name, entry in COST_MODELS.items() if entry.transfers)
"""The models whose features are the same for all tasks."""
COMPACT = dataclasses.replace(TRANSFERRED, rounds=100, depth=5)
"""Fewer and smaller trees than :data:`TRANSFERRED`: a third of its size."""


@dataclasses.dataclass(frozen=True)
class TaskQuality:
    """Ranking quality of a model on the candidates of a task: Pruner's Top-k (equation 2: the best run time, divided by
    the best one among the k that are ranked first; 1 at best) and Spearman's rank correlation with the run times."""

    name: str
    device_class: str
    candidates: int
    top_1: float
    top_5: float
    rank_correlation: float


def pretrainable(name: str) -> CostModelEntry:
    """Return the model of this name. Raises :class:`UserError` if it cannot be pre-trained."""
    if name in PRETRAINABLE:
        return COST_MODELS[name]
    problem = f"the model '{name}' cannot be pre-trained" if name in COST_MODELS else problem_of(name)
    raise UserError(problem, f"choose one of: {', '.join(PRETRAINABLE)}")


def check_out(out: Path) -> None:
    """Raise :class:`ModelFileError` if ``out`` cannot be a model file: now, not only after the training."""
    if out.suffix != MODEL_SUFFIX:
        raise ModelFileError(f"{out} would not be found as a model", f"let the name end with {MODEL_SUFFIX}")
    if not out.parent.is_dir() or out.is_dir():
        raise ModelFileError(f"cannot write the model {out}: no such folder", "choose another place with --out")


def read_tasks(sources: Sequence[Path]) -> tuple[list[TaskData], list[DataSource]]:
    """Return the measured candidates of datasets, record databases and MetaSchedule databases, and a description of
    each source. Raises :class:`UserError`."""
    tasks: list[TaskData] = []
    named: list[DataSource] = []
    for path in sources:
        found: TransferSource = read_source(path)
        if found.model is not None:
            raise TransferError(f"{path} is a model, not measured candidates", "give a dataset or a record database")
        tasks += found.tasks
        named.append(data_sources(path.name, found.tasks))
    return tasks, named


def pretrain(
    sources: Sequence[Path],
    out: Path,
    entry: CostModelEntry,
    seed: int,
    *,
    compact: bool = False,
    from_analyzer: bool = True,
) -> Manifest:
    """Train a model on all tasks of ``sources`` and write it. ``compact``: fewer and smaller trees, or one network
    instead of an ensemble. ``from_analyzer``: a model that can starts from the analyzer's prediction."""
    tasks, data = read_tasks(sources)
    kind = _one_kind(tasks)
    model: CostModel
    model = entry.make_general(seed, from_analyzer=from_analyzer)
    if compact:
        if isinstance(model, NeuralModel):
            model.settings = dataclasses.replace(model.settings, members=1)
        elif entry == BOOSTED_INVARIANT:
            model = InvariantTreesModel(seed, COMPACT, from_analyzer=from_analyzer)
        else:
            raise UserError(f"there is no compact form of the model '{entry.name}'", "omit --compact")
    found = _examples(tasks, model.views)
    model.fit(found.features, found.log_secs, found.groups)
    return _write(model, kind, data, tasks, out)


def finetune(source: Path, sources: Sequence[Path], out: Path, momentum: float | None) -> Manifest:
    """Train a model file further on the tasks of ``sources``. With a ``momentum``, the model makes one step of momentum
    adaptation for each task in turn, on the task and those before it, and its siamese weights are written. None: plain
    fine-tuning."""
    model, manifest = read_model(source)
    tasks, data = read_tasks(sources)
    kind = _one_kind(tasks)
    if kind != manifest.device_kind:
        raise TransferError(
            f"the model is for devices of the kind '{manifest.device_kind}', the data for '{kind}'", "give other data"
        )
    if momentum is None:
        found = _examples(tasks, model.views)
        model.update(found.features, found.log_secs, found.groups)
    else:
        network = model.network
        if network is None or network is not model:
            raise TransferError(
                f"a model of the kind '{manifest.model}' has no weights to adapt by momentum",
                "omit --moa, or pre-train a network",
            )
        adapted = MomentumModel(copied(network), True, momentum)
        found = _examples(tasks, model.views)
        for group in np.unique(found.groups):
            rows = np.flatnonzero(found.groups <= group)
            adapted.update(found.features.take(rows), found.log_secs[rows], found.groups[rows])
        assert adapted.siamese is not None
        adapted.network.set_weights(adapted.siamese)
        model = adapted.network
    return _write(model, kind, [*manifest.data, *data], tasks, out)


def evaluate(source: Path, sources: Sequence[Path]) -> list[TaskQuality]:
    """Return the ranking quality of a model file on the candidates of each task."""
    model, _ = read_model(source)
    tasks, _ = read_tasks(sources)
    return quality(model, tasks)


def export(source: Path, out: Path, device_class: str | None) -> Manifest:
    """Write a model to the file ``out``: one that comes with fleet-tune (``pretrained``, ``pretrained-pacm``), or the
    one that a run in the folder ``source`` has adapted to a device class."""
    if is_builtin(source):
        file = model_file.load(BUILTIN_PATHS[str(source)], FEATURE_VERSION)
        model_file.save(file, out)
        return file.manifest
    kept = sorted((source / "models").glob("*.model"))
    if device_class is not None:
        kept = [path for path in kept if path.stem == device_class]
    if len(kept) != 1:
        names = ", ".join(path.stem for path in kept) or "none"
        raise ModelFileError(
            f"{source} has the adapted models of {names}",
            "name one with --device-class"
            if kept
            else "give the folder of a run with a method that adapts a network (pruner, moa-pruner), or 'pretrained'",
        )
    try:
        model = load_model(kept[0].read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFileError(f"the model {kept[0]} cannot be read: {error}", "run the tuning again") from error
    if isinstance(model, MomentumModel):
        network, siamese = model.network, model.siamese
        assert siamese is not None
        network.set_weights(siamese)
        model = network
    tasks, data = read_tasks([source])
    own = [each for each in tasks if each.task.device_class.name == kept[0].stem]
    return _write(model, _one_kind(own), data, own, out)


def quality(model: CostModel, tasks: Iterable[TaskData]) -> list[TaskQuality]:
    """Return the ranking quality of a model on each task that has a success. Raises ValueError if the model
    reads the features of one task."""
    if not transferable(model):
        raise ValueError("the model reads the features of one task")
    found = []
    for data in tasks:
        if not data.ok.any():
            continue
        examples = _examples([data], model.views)
        order = np.concatenate([data.rows(at) for at in range(len(data.sketches))])
        cost = data.cost_secs[order]
        scores, _ = model.predict(examples.features)
        found.append(
            TaskQuality(
                data.task.workload.name,
                data.task.device_class.name,
                len(data),
                top_k(scores, cost, 1),
                top_k(scores, cost, 5),
                rank_correlation(scores, targets(cost)),
            )
        )
    return found


def summary(found: Sequence[TaskQuality]) -> Mapping[str, float]:
    """Return the mean of each figure over the tasks; empty without tasks."""
    if not found:
        return {}
    return {
        "top_1": float(np.mean([each.top_1 for each in found])),
        "top_5": float(np.mean([each.top_5 for each in found])),
        "rank_correlation": float(np.mean([each.rank_correlation for each in found])),
    }


def _write(model: CostModel, kind: str, data: Sequence[DataSource], tasks: Sequence[TaskData], out: Path) -> Manifest:
    if isinstance(model, GlobalLocalModel):
        raise UserError("a global with a local model belongs to one task", "give the global one")
    seen = {f"seen_{name}": value for name, value in summary(quality(model, tasks)).items() if math.isfinite(value)}
    file = to_file(model, kind, data, seen)
    model_file.save(file, out)
    return file.manifest


def _examples(tasks: Sequence[TaskData], views: Sequence[str]) -> Examples:
    found = general_examples(tasks, views)
    if found is None:
        raise TransferError("no candidate in the data ran", "give other data")
    return found


def _one_kind(tasks: Sequence[TaskData]) -> str:
    kinds = sorted({each.abstraction.kind for each in tasks})
    if len(kinds) != 1:
        raise TransferError(f"the data are of devices of the kinds {', '.join(kinds)}", "train a model for each kind")
    return kinds[0]
