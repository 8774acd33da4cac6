"""The laboratory: cost models and acquisition functions that are only compared in benchmarks; no method uses them.

:data:`LABORATORY_MODELS` has the entries of the cost models. :func:`method_named` and :func:`load_model` know these
models and those of the product.
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
