"""Ansor and Bansor."""

from __future__ import annotations

from dataclasses import replace

from policies.cost_models.registry import BOOSTED_STATEMENTS
from policies.search.acquisition import PredictedMean
from policies.search.allocation import UcbSketches, UniformSketches
from policies.search.bandits import GradientTasks, PublishedGradient, UcbTasks
from policies.search.draft import DraftSettings
from policies.search.exploration import FixedEpsilon
from policies.search.generators import GeneticGenerator
from policies.search.methods.method import Method
from policies.search.trainer import Training

ANSOR = Method(
    name="ansor",
    source="Ansor, as Bansor section II describes it: random sketch, evolutionary search on XGBoost",
    tasks=GradientTasks(epsilon=0.05),
    sketches=UniformSketches(),
    generator=GeneticGenerator(DraftSettings(size=512, population=2048, generations=4, variant_rows=1)),
    acquisition=PredictedMean(),
    exploration=FixedEpsilon(0.05),
    training=Training(BOOSTED_STATEMENTS),
    batch=64,
    by_round=True,
)
"""Ansor by Bansor's Algorithm 1: each round one task by the gradient of equation 2 (epsilon-greedy, epsilon 0.05), one
sketch drawn uniformly, an evolutionary search of 2,048 candidates in 4 generations on boosted trees, 64 measurements
(``num_measures_per_round`` of its code), of which 0.05 random."""

BANSOR: Method = replace(
    ANSOR,
    name="bansor",
    source="Bansor section III: Ansor with UCB over sketches and over tasks, C = 0.3",
    tasks=UcbTasks(exploration_constant=0.3, gradient=PublishedGradient()),
    sketches=UcbSketches(exploration_constant=0.3),
)
"""Ansor, with the sketch of a round chosen by equations 3 and 4, its task by equations 5 and 6; C = 0.3 (section V)."""
