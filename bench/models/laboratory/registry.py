"""The cost models of the laboratory by name, and the methods that use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.models.laboratory.forest import SymbolicForestModel
from bench.models.laboratory.jackknife_forest import JackknifeForestModel
from bench.models.laboratory.networks import (
    AnalyzedPacmModel,
    DataflowPacmModel,
    MlpModel,
    TlpModel,
    TreeGruModel,
    TreeGruRegressionModel,
)
from bench.models.laboratory.representations import ContextTreesModel, KnobTreesModel, RelationTreesModel
from fleet_tune.runs.methods import method_of
from policies.cost_models import registry
from policies.cost_models.boosted import AUTOTVM_TREES, GradientBoostedModel, LoopTreesModel
from policies.cost_models.neural import NeuralModel
from policies.cost_models.protocol import CostModel
from policies.cost_models.registry import COST_MODELS, CostModelEntry
from policies.search import methods
from policies.search.methods import OFFLINE, Method, with_model

AUTOTVM_REGRESSION = replace(AUTOTVM_TREES, objective="regression")
"""Settings of AutoTVM's trees with its other objective, the regression (its figure 5)."""


def _boosted_rank(seed: int, offset_column: int | None) -> CostModel:
    return GradientBoostedModel(seed, AUTOTVM_TREES, offset_column)


def _boosted_loops(seed: int, offset_column: int | None) -> CostModel:  # noqa: ARG001
    return LoopTreesModel(seed, AUTOTVM_REGRESSION)


@dataclass(frozen=True)
class _MakeTrees:
    """Makes a model of AutoTVM's trees; a class for the same reason as :class:`_MakeNetwork`."""

    model: type[LoopTreesModel]

    def __call__(self, seed: int, offset_column: int | None) -> CostModel:  # noqa: ARG002
        return self.model(seed, AUTOTVM_TREES)


def _representation(model: type[LoopTreesModel]) -> CostModelEntry:
    return CostModelEntry(model.KIND, model, _MakeTrees(model))


def _forest(seed: int, offset_column: int | None) -> CostModel:  # noqa: ARG001
    return SymbolicForestModel(seed)


def _jackknife_forest(seed: int, offset_column: int | None) -> CostModel:  # noqa: ARG001
    return JackknifeForestModel(seed)


@dataclass(frozen=True)
class _MakeNetwork:
    """Makes a network. It is a class because its objects are pickled for the processes of a benchmark."""

    model: type[NeuralModel]

    def __call__(self, seed: int, offset_column: int | None) -> CostModel:
        return self.model(seed, from_analyzer=offset_column is not None)


def _network(model: type[NeuralModel]) -> CostModelEntry:
    return CostModelEntry(model.KIND, model, _MakeNetwork(model), learns_on=True)


BOOSTED_RANK = CostModelEntry("boosted-rank", GradientBoostedModel, _boosted_rank)
"""AutoTVM's trees with its rank objective on our features."""
BOOSTED_LOOPS = CostModelEntry("boosted-loops", LoopTreesModel, _boosted_loops)
"""AutoTVM's trees with its regression on its own features."""
BOOSTED_KNOBS = _representation(KnobTreesModel)
"""AutoTVM's trees with its rank objective on configurations (its figure 9)."""
BOOSTED_CONTEXT = _representation(ContextTreesModel)
"""AutoTVM's trees with its rank objective on flattened loop contexts."""
BOOSTED_RELATION = _representation(RelationTreesModel)
"""AutoTVM's trees with its rank objective on context relations."""
FOREST = CostModelEntry("forest", SymbolicForestModel, _forest)
"""AdaTune's forest on our features."""
FOREST_JACKKNIFE = CostModelEntry("forest-jackknife", JackknifeForestModel, _jackknife_forest)
"""AdaTune's forest with the uncertainty of forestci, the package that the paper names."""
TREE_GRU = _network(TreeGruModel)
"""AutoTVM's TreeGRU with its rank loss."""
TREE_GRU_REGRESSION = _network(TreeGruRegressionModel)
"""AutoTVM's TreeGRU with its regression loss."""
MLP = _network(MlpModel)
"""TenSet's multi-layer perceptron on symbolic features of the statements."""
TLP = _network(TlpModel)
"""A model after TLP, on the decisions of a schedule alone."""
PACM_ANALYZER = _network(AnalyzedPacmModel)
"""Pruner's PaCM with the analyzer's terms among its features."""
PACM_DATAFLOW = _network(DataflowPacmModel)
"""Pruner's PaCM without its statement features."""

LABORATORY_MODELS: Mapping[str, CostModelEntry] = {
    entry.name: entry
    for entry in (
        BOOSTED_RANK,
        BOOSTED_LOOPS,
        BOOSTED_KNOBS,
        BOOSTED_CONTEXT,
        BOOSTED_RELATION,
        FOREST,
        FOREST_JACKKNIFE,
        TREE_GRU,
        TREE_GRU_REGRESSION,
        MLP,
        TLP,
        PACM_ANALYZER,
        PACM_DATAFLOW,
    )
}
"""The cost models of the laboratory, by name."""


def all_models() -> Mapping[str, CostModelEntry]:
    """Return the cost models of the product and of the laboratory, by name."""
    return {**COST_MODELS, **LABORATORY_MODELS}


def method_named(name: str) -> Method:
    """Return the method of a name. The name may continue with a model of the laboratory (``autotvm:tree-gru``), or it
    may be a method in a file (``my_search.py:METHOD``).

    Raise UserError for an unknown name, and ValueError if the method has no cost model to replace.
    """
    if ".py" in name:
        return method_of(name)
    base, *changes = name.split(":")
    models = [change for change in changes if change in LABORATORY_MODELS]
    if len(models) != 1:
        return methods.method_named(name)
    rest = [change for change in changes if change not in (*models, OFFLINE)]
    method = methods.method_named(":".join([base, *rest]))
    return with_model(method, LABORATORY_MODELS[models[0]], name, offline=OFFLINE in changes)


def load_model(data: bytes) -> CostModel:
    """Return the model in saved bytes, of the product or of the laboratory. Raise ValueError for other bytes."""
    return registry.load_model(data, *LABORATORY_MODELS.values())
