"""Neural cost models of the papers; :mod:`policies.cost_models.neural` has their common part."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from policies.cost_models.neural import NeuralModel
from policies.features.views import DATAFLOW, INVARIANT, STATEMENTS, VIEW_SHAPES

if TYPE_CHECKING:
    from torch import nn


class PacmModel(NeuralModel):
    """Pruner's PaCM (section 4.2): a statement branch, and a branch of dataflow steps with attention."""

    KIND: ClassVar[str] = "pacm"
    inputs: ClassVar[tuple[str, ...]] = (STATEMENTS, DATAFLOW)
    views: ClassVar[tuple[str, ...]] = (*inputs, INVARIANT)

    @classmethod
    def _make(cls) -> nn.Module:
        from policies.cost_models.torch_modules import Pacm

        return Pacm([VIEW_SHAPES[name] for name in cls.inputs])
