"""AutoTVM (Chen et al. 2018)."""

from __future__ import annotations

from policies.cost_models.registry import BOOSTED_RANK_LOOPS
from policies.measuring.stop_rules import DETERMINISTIC
from policies.search.acquisition import PredictedMean
from policies.search.allocation import JointSketches
from policies.search.annealing import AnnealingSettings
from policies.search.bandits import RoundRobinTasks
from policies.search.batch import Selection
from policies.search.exploration import FixedEpsilon
from policies.search.generators import AnnealingGenerator
from policies.search.methods.method import Method
from policies.search.trainer import Training

AUTOTVM = Method(
    name="autotvm",
    source="AutoTVM: simulated annealing on boosted trees (rank objective), diversity-aware choice, epsilon 0.05",
    tasks=RoundRobinTasks(),
    sketches=JointSketches(),
    generator=AnnealingGenerator(AnnealingSettings(chains=128, steps=500)),
    acquisition=PredictedMean(),
    selection=Selection(alpha=0.1, top_factor=2.0),
    exploration=FixedEpsilon(0.05),
    training=Training(BOOSTED_RANK_LOOPS, of_each_task=True),
    batch=64,
    stop_rule=DETERMINISTIC,
)
"""AutoTVM, Algorithm 1 and appendix A.3: batches of 64 (``b_GBT``), 128 chains of at most 500 steps (``n_sa``,
``step_sa``), epsilon 0.05, the rank objective of equation 2, equation 3 among the best ``lambda * b``; every candidate
is measured to the end, with the 500 runs that AdaTune's comparison gives it. Open in the paper: lambda (figure 6 tries
1, 2 and 4; here it is 2), alpha (here 0.1: a candidate whose components are all new gains a tenth of the best score),
and the order of tasks: the paper tunes them one by one, here they take turns. A template is one space, so our sketches
compete as one.
"""
