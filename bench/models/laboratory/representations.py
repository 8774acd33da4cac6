"""AutoTVM's trees, each on a single representation of a program (its figure 9).

The method ``autotvm`` reads contexts and relations together.
"""

from __future__ import annotations

from typing import ClassVar

from policies.cost_models.boosted import LoopTreesModel
from policies.features.table import KNOBS
from policies.features.views import CONTEXT, RELATION


class KnobTreesModel(LoopTreesModel):
    """On the configuration itself, ``s``: the decisions of a task. Its columns have no meaning in another task."""

    KIND: ClassVar[str] = "boosted-knobs"
    views: ClassVar[tuple[str, ...]] = (KNOBS,)


class ContextTreesModel(LoopTreesModel):
    """On the flattened loop context, ``x``."""

    KIND: ClassVar[str] = "boosted-context"
    views: ClassVar[tuple[str, ...]] = (CONTEXT,)


class RelationTreesModel(LoopTreesModel):
    """On the context relations, ``R``."""

    KIND: ClassVar[str] = "boosted-relation"
    views: ClassVar[tuple[str, ...]] = (RELATION,)
