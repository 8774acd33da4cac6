"""The cost models by name: what a preset may ask for, and which class reads a saved one."""

from __future__ import annotations

from typing import Literal

from policies import model_bytes
from policies.boosted_trees import AUTOTVM_TREES, GradientBoostedModel
from policies.cost_model import CostModel
from policies.random_forest import RandomForestModel

ModelName = Literal["boosted", "boosted-rank", "forest"]
"""``boosted``: ours, a regression. ``boosted-rank``: AutoTVM's. ``forest``: AdaTune's."""

_KINDS: dict[str, type[CostModel]] = {
    GradientBoostedModel.KIND: GradientBoostedModel,
    RandomForestModel.KIND: RandomForestModel,
}


def make_model(name: ModelName, seed: int, offset_column: int | None = None) -> CostModel:
    """An untrained cost model. ``offset_column``: see :class:`GradientBoostedModel`; a forest starts from nothing."""
    if name == "boosted":
        return GradientBoostedModel(seed, offset_column=offset_column)
    if name == "boosted-rank":
        return GradientBoostedModel(seed, AUTOTVM_TREES, offset_column)
    if name == "forest":
        return RandomForestModel(seed)
    raise ValueError(f"there is no cost model '{name}'")


def load_model(data: bytes) -> CostModel:
    """The model that any of these classes saved; ValueError for other or damaged bytes."""
    kind = model_bytes.unpack(data).kind
    if kind not in _KINDS:
        raise ValueError(f"these bytes are a cost model of the unknown kind '{kind}'")
    try:
        return _KINDS[kind].load(data)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the cost model '{kind}' lacks what this version reads: {error!r}") from error
