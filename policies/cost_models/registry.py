"""The cost models by name: what a method may ask for, and which class reads a saved one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from policies.cost_models import model_bytes
from policies.cost_models.architectures import (
    AnalyzedPacmModel,
    DataflowPacmModel,
    MlpModel,
    PacmModel,
    PerStoreMlpModel,
    TreeGruModel,
)
from policies.cost_models.boosted import (
    AUTOTVM_REGRESSION,
    AUTOTVM_TREES,
    TRANSFERRED,
    GradientBoostedModel,
    InvariantTreesModel,
    LoopTreesModel,
)
from policies.cost_models.forest import KnobForestModel, RandomForestModel
from policies.cost_models.gaussian import GaussianProcessModel
from policies.cost_models.global_local import GlobalLocalModel
from policies.cost_models.moa import MomentumModel
from policies.cost_models.neural import NeuralModel
from policies.cost_models.protocol import CostModel
from policies.cost_models.statement_trees import StatementTreesModel
from policies.features.table import OF_A_TASK

ModelName = Literal[
    "boosted",
    "boosted-rank",
    "boosted-rank-loops",
    "boosted-loops",
    "boosted-statements",
    "boosted-invariant",
    "forest",
    "forest-knobs",
    "gaussian",
    "tree-gru",
    "mlp",
    "mlp-per-store",
    "pacm",
    "pacm-analyzer",
    "pacm-dataflow",
]
"""``boosted``: ours, a regression. ``boosted-rank``: AutoTVM's objective on our features, ``boosted-rank-loops`` on its
own. ``boosted-statements``: Ansor's. ``boosted-invariant``: ours, on features that all tasks share. ``forest``:
AdaTune's forest on our features, ``forest-knobs`` on its own. ``gaussian``: ours, a process of one task.
``tree-gru``: AutoTVM's. ``mlp``: TenSet's, on symbolic features of the statements, or on TVM's of the lowered program
(``mlp-per-store``). ``pacm``: Pruner's, and with the analyzer's terms among its features ``pacm-analyzer``, without
its statement features ``pacm-dataflow``."""
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)

_NETWORKS: dict[str, type[NeuralModel]] = {
    model.KIND: model
    for model in (TreeGruModel, MlpModel, PerStoreMlpModel, PacmModel, AnalyzedPacmModel, DataflowPacmModel)
}
_READERS: dict[str, Callable[[bytes], CostModel]] = {
    GradientBoostedModel.KIND: GradientBoostedModel.load,
    InvariantTreesModel.KIND: InvariantTreesModel.load,
    LoopTreesModel.KIND: LoopTreesModel.load,
    StatementTreesModel.KIND: StatementTreesModel.load,
    RandomForestModel.KIND: RandomForestModel.load,
    KnobForestModel.KIND: KnobForestModel.load,
    GaussianProcessModel.KIND: GaussianProcessModel.load,
    **{kind: network.load for kind, network in _NETWORKS.items()},
    # Models that are made of others.
    MomentumModel.KIND: lambda data: MomentumModel.load(data, load_model),
    GlobalLocalModel.KIND: lambda data: GlobalLocalModel.load(data, load_model),
}
_CLASSES: dict[
    ModelName,
    type[GradientBoostedModel] | type[RandomForestModel] | type[GaussianProcessModel] | type[NeuralModel],
] = {
    "boosted": GradientBoostedModel,
    "boosted-rank": GradientBoostedModel,
    "boosted-rank-loops": LoopTreesModel,
    "boosted-loops": LoopTreesModel,
    "boosted-statements": StatementTreesModel,
    "boosted-invariant": InvariantTreesModel,
    "forest": RandomForestModel,
    "forest-knobs": KnobForestModel,
    "gaussian": GaussianProcessModel,
    "tree-gru": TreeGruModel,
    "mlp": MlpModel,
    "mlp-per-store": PerStoreMlpModel,
    "pacm": PacmModel,
    "pacm-analyzer": AnalyzedPacmModel,
    "pacm-dataflow": DataflowPacmModel,
}


def make_model(name: ModelName, seed: int, offset_column: int | None = None) -> CostModel:
    """An untrained cost model.

    ``offset_column``: the symbolic feature that ``boosted``, ``boosted-rank`` and ``gaussian`` start from, the
    analyzer's log seconds; models that find these in the view ``invariant`` start from them where a column is given,
    whichever it is. The others start from nothing.
    """
    from_analyzer = offset_column is not None
    if name == "boosted":
        return GradientBoostedModel(seed, offset_column=offset_column)
    if name == "boosted-rank":
        return GradientBoostedModel(seed, AUTOTVM_TREES, offset_column)
    if name == "boosted-rank-loops":
        return LoopTreesModel(seed, AUTOTVM_TREES)
    if name == "boosted-loops":
        return LoopTreesModel(seed, AUTOTVM_REGRESSION)
    if name == "boosted-statements":
        return StatementTreesModel(seed)
    if name == "boosted-invariant":
        return InvariantTreesModel(seed, from_analyzer=from_analyzer)
    if name == "forest":
        return RandomForestModel(seed)
    if name == "forest-knobs":
        return KnobForestModel(seed)
    if name == "gaussian":
        return GaussianProcessModel(seed, offset_column)
    if name in _NETWORKS:
        return _NETWORKS[name](seed, from_analyzer=from_analyzer)
    raise ValueError(f"there is no cost model '{name}'")


def make_general_model(name: ModelName, seed: int, *, from_analyzer: bool) -> CostModel:
    """An untrained cost model to be trained on many tasks for others. ``from_analyzer``: where it can, it starts from
    the analyzer's log seconds."""
    if name == "boosted-invariant":
        return InvariantTreesModel(seed, TRANSFERRED, from_analyzer=from_analyzer)
    return make_model(name, seed, 0 if from_analyzer else None)


def views_of(name: ModelName) -> tuple[str, ...]:
    """The views that the model reads."""
    return _CLASSES[name].views


def is_network(name: ModelName) -> bool:
    """Whether the model is a neural network."""
    return name in _NETWORKS


def transfers(name: ModelName) -> bool:
    """Whether the model reads nothing but what is the same for all tasks: so it can be trained on several."""
    return OF_A_TASK.isdisjoint(views_of(name))


def kind_of(name: ModelName) -> str:
    """What a saved model of this name calls itself."""
    return _CLASSES[name].KIND


def is_quick(name: ModelName) -> bool:
    """Whether the model is trained in hundredths of a second, so that it may follow every batch of records."""
    return name == "gaussian"


def learns_on(name: ModelName) -> bool:
    """Whether an update goes on from the weights as they are; the other models are made anew from all records."""
    return name in _NETWORKS


def load_model(data: bytes) -> CostModel:
    """The model that any of these classes saved; ValueError for other or damaged bytes."""
    kind = model_bytes.unpack(data).kind
    if kind not in _READERS:
        raise ValueError(f"these bytes are a cost model of the unknown kind '{kind}'")
    try:
        return _READERS[kind](data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the cost model '{kind}' lacks what this version reads: {error!r}") from error
