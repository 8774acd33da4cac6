"""The laboratory: cost models and acquisition functions that benchmarks compare and no method uses.

:data:`LABORATORY_MODELS` has their entries, :func:`method_named` and :func:`load_model` know them beside those of the
product.
"""

from bench.models.laboratory.acquisition import ConfidenceBound, ProbabilityOfImprovement
from bench.models.laboratory.registry import LABORATORY_MODELS, all_models, load_model, method_named

__all__ = [
    "LABORATORY_MODELS",
    "ConfidenceBound",
    "ProbabilityOfImprovement",
    "all_models",
    "load_model",
    "method_named",
]
