"""Neural cost models of the papers that no method uses. Their common part is in :mod:`policies.cost_models.neural`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.models.laboratory.losses import deviations, pairwise_rank, squared_error
from policies.arrays import Floats, Groups
from policies.cost_models.architectures import PacmModel
from policies.cost_models.neural import NeuralModel
from policies.features.loop_tree import PARENT
from policies.features.table import FeatureTable
from policies.features.views import (
    ANALYZED_STATEMENTS,
    DATAFLOW,
    INVARIANT,
    LOOP_TREE,
    PRIMITIVES,
    STATEMENTS,
    VIEW_SHAPES,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


class AnalyzedPacmModel(PacmModel):
    """A variant of PaCM that is not in the paper: its statement branch also reads our analyzer's terms and Pruner's
    symbols."""

    KIND: ClassVar[str] = "pacm-analyzer"
    inputs: ClassVar[tuple[str, ...]] = (ANALYZED_STATEMENTS, DATAFLOW)
    views: ClassVar[tuple[str, ...]] = (*inputs, INVARIANT)


class DataflowPacmModel(NeuralModel):
    """PaCM without its statement branch: table 12 of the paper omits these features as S.F."""

    KIND: ClassVar[str] = "pacm-dataflow"
    inputs: ClassVar[tuple[str, ...]] = (DATAFLOW,)
    views: ClassVar[tuple[str, ...]] = (*inputs, INVARIANT)

    @classmethod
    def _make(cls) -> nn.Module:
        from bench.models.laboratory.torch_modules import Dataflow

        return Dataflow([VIEW_SHAPES[name] for name in cls.inputs])


class MlpModel(NeuralModel):
    """TenSet's multi-layer perceptron, on the statements' symbolic features."""

    KIND: ClassVar[str] = "mlp"
    inputs: ClassVar[tuple[str, ...]] = (STATEMENTS,)
    views: ClassVar[tuple[str, ...]] = (*inputs, INVARIANT)

    @classmethod
    def _make(cls) -> nn.Module:
        from bench.models.laboratory.torch_modules import Mlp

        return Mlp([VIEW_SHAPES[name] for name in cls.inputs])


class TlpModel(NeuralModel):
    """A model after TLP (Zhai et al., ASPLOS 2023): self-attention over the decisions of a schedule alone."""

    KIND: ClassVar[str] = "tlp"
    inputs: ClassVar[tuple[str, ...]] = (PRIMITIVES,)
    views: ClassVar[tuple[str, ...]] = (*inputs, INVARIANT)

    @classmethod
    def _make(cls) -> nn.Module:
        from bench.models.laboratory.torch_modules import Tlp

        return Tlp([VIEW_SHAPES[name] for name in cls.inputs])


class TreeGruModel(NeuralModel):
    """AutoTVM's context-encoded TreeGRU (section 4) on the whole loop tree, with the rank loss of equation 2."""

    KIND: ClassVar[str] = "tree-gru"
    inputs: ClassVar[tuple[str, ...]] = (LOOP_TREE,)
    views: ClassVar[tuple[str, ...]] = (*inputs, INVARIANT)

    @classmethod
    def _make(cls) -> nn.Module:
        from bench.models.laboratory.torch_modules import TreeGru

        return TreeGru([VIEW_SHAPES[name] for name in cls.inputs])

    def _standardise(self, features: FeatureTable) -> None:
        """Standardise all columns but the parent's row number, which the network reads as it is."""
        super()._standardise(features)
        self._centre[LOOP_TREE][PARENT], self._scale[LOOP_TREE][PARENT] = 0.0, 1.0

    @classmethod
    def _labels(cls, log_secs: Floats, groups: Groups) -> Floats:  # noqa: ARG003
        return -log_secs

    @classmethod
    def _loss(cls, scores: Tensor, labels: Tensor) -> Tensor:
        return pairwise_rank(scores, labels)


class TreeGruRegressionModel(TreeGruModel):
    """The same network with AutoTVM's other objective, the regression (its figure 5)."""

    KIND: ClassVar[str] = "tree-gru-regression"

    @classmethod
    def _labels(cls, log_secs: Floats, groups: Groups) -> Floats:
        return deviations(log_secs, groups)

    @classmethod
    def _loss(cls, scores: Tensor, labels: Tensor) -> Tensor:
        return squared_error(scores, labels)
