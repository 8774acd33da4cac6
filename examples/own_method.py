"""A search method made of parts: ``fleet-tune tune NETWORK --method examples/own_method.py:METHOD``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.arrays import Floats
from policies.cost_models.registry import BOOSTED
from policies.search.allocation import UcbSketches
from policies.search.bandits import UcbTasks
from policies.search.draft import DraftSettings
from policies.search.exploration import FixedEpsilon
from policies.search.generators import DraftGenerator
from policies.search.methods import Method
from policies.search.trainer import Training


@dataclass(frozen=True)
class Optimistic:
    """An acquisition of one's own: the throughput at ``doubt`` deviations above the mean."""

    doubt: float = 1.0
    name: str = "optimistic"

    def __call__(self, mean: Floats, deviation: Floats, best_secs: float, /) -> Floats:  # noqa: ARG002
        """Scores, not negative, higher is better."""
        return np.nan_to_num(np.exp(self.doubt * deviation - mean), nan=0.0)

    def energy(self, mean: Floats, deviation: Floats, best_secs: float, /) -> Floats:  # noqa: ARG002
        """Energy that simulated annealing minimises, in the order of minus the scores."""
        return mean - self.doubt * deviation


METHOD = Method(
    name="own",
    source="an example: a draft on boosted trees, optimistic",
    tasks=UcbTasks(),
    sketches=UcbSketches(exploration_constant=0.3),
    generator=DraftGenerator(DraftSettings(size=256, population=512)),
    acquisition=Optimistic(doubt=1.5),
    exploration=FixedEpsilon(0.1),
    training=Training(BOOSTED, from_analyzer=True),
    batch=16,
)
