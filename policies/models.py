"""The cost models by name: what a preset may ask for, and which class reads a saved one."""

from __future__ import annotations

from policies import model_bytes
from policies.boosted_trees import GradientBoostedModel
from policies.cost_model import CostModel

_KINDS: dict[str, type[CostModel]] = {GradientBoostedModel.KIND: GradientBoostedModel}


def load_model(data: bytes) -> CostModel:
    """The model that any of these classes saved; ValueError for other or damaged bytes."""
    kind = model_bytes.unpack(data).kind
    if kind not in _KINDS:
        raise ValueError(f"these bytes are a cost model of the unknown kind '{kind}'")
    return _KINDS[kind].load(data)
