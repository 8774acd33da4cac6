"""AutoTVM's trees on one representation of a program each (its figure 9).

``autotvm`` itself reads contexts and relations together.
"""

from __future__ import annotations

from typing import ClassVar

from policies.cost_models.boosted import LoopTreesModel
from policies.features.table import KNOBS
from policies.features.views import CONTEXT, RELATION


class KnobTreesModel(LoopTreesModel):
    """The configuration itself, ``s``: a task's own decisions, whose columns mean nothing in another task."""

    KIND: ClassVar[str] = "boosted-knobs"
    views: ClassVar[tuple[str, ...]] = (KNOBS,)


class ContextTreesModel(LoopTreesModel):
    """The flattened loop context, ``x``."""

    KIND: ClassVar[str] = "boosted-context"
    views: ClassVar[tuple[str, ...]] = (CONTEXT,)


class RelationTreesModel(LoopTreesModel):
    """The context relations, ``R``."""

    KIND: ClassVar[str] = "boosted-relation"
    views: ClassVar[tuple[str, ...]] = (RELATION,)
