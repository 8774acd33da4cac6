"""AdaTune (Li et al. 2020)."""

from __future__ import annotations

from dataclasses import replace

from policies.cost_models.registry import FOREST_KNOBS
from policies.measuring.stop_rules import ADAPTIVE
from policies.search.acquisition import ExpectedImprovement
from policies.search.exploration import ContextualEpsilon
from policies.search.methods.autotvm import AUTOTVM
from policies.search.methods.method import Method
from policies.search.trainer import Training

PLANS = 20
"""Random candidates that the contextual epsilon is taken from."""

ADATUNE: Method = replace(
    AUTOTVM,
    name="adatune",
    source="AdaTune: simulated annealing on a random forest, expected improvement, contextual epsilon",
    acquisition=ExpectedImprovement(),
    exploration=ContextualEpsilon(plans=PLANS),
    training=Training(FOREST_KNOBS),
    batch=32,
    stop_rule=ADAPTIVE,
)
"""AdaTune, Algorithm 1 and appendix A: batches of 32, a random forest of 10 trees with max_features 10, equations 1 and
2 in AutoTVM's diversity objective, equation 3 over 20 random plans, the adaptive evaluator of section 4.1; everything
else is AutoTVM's. Differences from the paper: the forest learns the logarithm of seconds, as all models here do, so
that the expected improvement is a ratio; a measurement's cost is the median of its micro-batches, not the mean of its
runs; and the deviation is the spread of the trees (:mod:`policies.cost_models.forest`)."""
