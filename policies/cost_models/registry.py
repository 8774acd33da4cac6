"""The table of cost models: an entry describes how a model is made and read, and what it needs.

A new cost model is a class with the methods of :class:`policies.cost_models.protocol.CostModel` and one
:class:`CostModelEntry` in :data:`COST_MODELS`. A :class:`policies.search.trainer.Training` holds the entry itself, so
that a method can also use a model that is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from policies.cost_models import model_bytes
from policies.cost_models.architectures import PacmModel
from policies.cost_models.boosted import (
    AUTOTVM_TREES,
    TRANSFERRED,
    GradientBoostedModel,
    InvariantTreesModel,
    LoopTreesModel,
)
from policies.cost_models.forest import RandomForestModel
from policies.cost_models.gaussian import GaussianProcessModel
from policies.cost_models.global_local import GlobalLocalModel
from policies.cost_models.moa import MomentumModel
from policies.cost_models.protocol import CostModel, SavedModel
from policies.cost_models.statement_trees import StatementTreesModel
from policies.features.table import OF_A_TASK


@dataclass(frozen=True)
class CostModelEntry:
    """A kind of cost model that a method can train."""

    name: str
    """The name by which a user asks for the model."""
    model: type[SavedModel]
    """The class of the model: it names the views that it reads, its ``KIND`` in files, and reads its saved bytes."""
    make: Callable[[int, int | None], CostModel] = field(repr=False)
    """Makes an untrained model from a seed and the column of the symbolic features that holds the analyzer's log
    seconds. Without a column the model does not start from the analyzer. A model that finds the analyzer's prediction
    in the view ``invariant`` starts from it if any column is given."""
    make_shared: Callable[[int, int | None], CostModel] | None = field(default=None, repr=False)
    """Makes an untrained model that will be trained on many tasks and used for others; None: ``make`` is used."""
    learns_on: bool = False
    """True if an update continues from the current weights; the other models are made anew from all records."""
    quick: bool = False
    """True if a training takes hundredths of a second, so that it may follow every batch of records."""

    @property
    def kind(self) -> str:
        """The name of the model in saved bytes."""
        return self.model.KIND

    @property
    def views(self) -> tuple[str, ...]:
        """The views that the model reads."""
        return self.model.views

    @property
    def transfers(self) -> bool:
        """True if the model reads only views that are the same for all tasks: it can be trained on several tasks."""
        return OF_A_TASK.isdisjoint(self.views)

    def make_general(self, seed: int, *, from_analyzer: bool) -> CostModel:
        """Make an untrained model that will be trained on many tasks and used for others."""
        return (self.make_shared or self.make)(seed, 0 if from_analyzer else None)


def _boosted(seed: int, offset_column: int | None) -> CostModel:
    return GradientBoostedModel(seed, offset_column=offset_column)


def _rank_loops(seed: int, offset_column: int | None) -> CostModel:  # noqa: ARG001
    return LoopTreesModel(seed, AUTOTVM_TREES)


def _statements(seed: int, offset_column: int | None) -> CostModel:  # noqa: ARG001
    return StatementTreesModel(seed)


def _invariant(seed: int, offset_column: int | None) -> CostModel:
    return InvariantTreesModel(seed, from_analyzer=offset_column is not None)


def _shared_invariant(seed: int, offset_column: int | None) -> CostModel:
    return InvariantTreesModel(seed, TRANSFERRED, from_analyzer=offset_column is not None)


def _forest(seed: int, offset_column: int | None) -> CostModel:  # noqa: ARG001
    return RandomForestModel(seed)


def _gaussian(seed: int, offset_column: int | None) -> CostModel:
    return GaussianProcessModel(seed, offset_column)


def _pacm(seed: int, offset_column: int | None) -> CostModel:
    return PacmModel(seed, from_analyzer=offset_column is not None)


BOOSTED = CostModelEntry("boosted", GradientBoostedModel, _boosted)
"""Ours: a regression on the symbolic features of one task."""
BOOSTED_RANK_LOOPS = CostModelEntry("boosted-rank-loops", LoopTreesModel, _rank_loops)
"""AutoTVM's rank objective on its own features."""
BOOSTED_STATEMENTS = CostModelEntry("boosted-statements", StatementTreesModel, _statements)
"""Ansor's cost model."""
BOOSTED_INVARIANT = CostModelEntry("boosted-invariant", InvariantTreesModel, _invariant, _shared_invariant)
"""Ours, on features that all tasks share: the model that comes with fleet-tune is one."""
FOREST_KNOBS = CostModelEntry("forest-knobs", RandomForestModel, _forest)
"""AdaTune's cost model."""
GAUSSIAN = CostModelEntry("gaussian", GaussianProcessModel, _gaussian, quick=True)
"""Ours: a Gaussian process of one task."""
PACM = CostModelEntry("pacm", PacmModel, _pacm, learns_on=True)
"""Pruner's cost model."""

COST_MODELS: Mapping[str, CostModelEntry] = {
    entry.name: entry
    for entry in (BOOSTED, BOOSTED_RANK_LOOPS, BOOSTED_STATEMENTS, BOOSTED_INVARIANT, FOREST_KNOBS, GAUSSIAN, PACM)
}
"""The cost models of the product, by name."""

LABORATORY = frozenset(
    {
        *("boosted-rank", "boosted-loops", "boosted-knobs", "boosted-context", "boosted-relation"),
        *("forest", "forest-jackknife"),
        *("tree-gru", "tree-gru-regression", "mlp", "tlp", "pacm-analyzer", "pacm-dataflow"),
    }
)
"""Names and kinds of the cost models that only benchmarks use (``bench/models/laboratory``)."""


def problem_of(name: str) -> str:
    """Say why there is no cost model ``name`` in the product."""
    if name in LABORATORY:
        return f"the cost model '{name}' is part of the benchmarks (bench/models/laboratory), not of fleet-tune"
    return f"there is no cost model '{name}'"


def load_model(data: bytes, *others: CostModelEntry) -> CostModel:
    """Return the model in saved bytes. Raise ValueError for unknown or damaged bytes.

    Args:
        data: bytes that :meth:`CostModel.save` returned.
        others: entries of models that may be in the bytes although they are not in :data:`COST_MODELS`.
    """

    def load(part: bytes) -> CostModel:
        return load_model(part, *others)

    kind = model_bytes.unpack(data).kind
    readers: dict[str, Callable[[bytes], CostModel]] = {
        **{entry.kind: entry.model.load for entry in (*others, *COST_MODELS.values())},
        # Models that are made of others.
        MomentumModel.KIND: lambda part: MomentumModel.load(part, load),
        GlobalLocalModel.KIND: lambda part: GlobalLocalModel.load(part, load),
    }
    if kind not in readers:
        where = ", which is part of the benchmarks (bench/models/laboratory)" if kind in LABORATORY else ""
        raise ValueError(f"these bytes are a cost model of the unknown kind '{kind}'{where}")
    try:
        return readers[kind](data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the cost model '{kind}' lacks what this version reads: {error!r}") from error
