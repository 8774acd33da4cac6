"""AdaTune's random forest on our symbolic features instead of the knobs."""

from __future__ import annotations

from typing import ClassVar

from policies.cost_models.forest import RandomForestModel
from policies.features.table import SYMBOLIC


class SymbolicForestModel(RandomForestModel):
    """The random forest on the symbolic features."""

    KIND: ClassVar[str] = "forest"
    views: ClassVar[tuple[str, ...]] = (SYMBOLIC,)
