"""The baseline of every paper."""

from __future__ import annotations

from policies.search.acquisition import PredictedMean
from policies.search.allocation import UniformSketches
from policies.search.bandits import RoundRobinTasks
from policies.search.exploration import FixedEpsilon
from policies.search.generators import RandomGenerator
from policies.search.methods.method import Method

RANDOM = Method(
    name="random",
    source="uniform candidates, sketches and tasks in turn: the baseline of every paper",
    tasks=RoundRobinTasks(),
    sketches=UniformSketches(),
    generator=RandomGenerator(),
    acquisition=PredictedMean(),
    exploration=FixedEpsilon(1.0),
    training=None,
    batch=64,
)
"""Every candidate is drawn uniformly from a uniformly drawn sketch."""
