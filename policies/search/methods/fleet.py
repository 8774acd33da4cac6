"""Ours."""

from __future__ import annotations

from policies.search.acquisition import ExpectedImprovement
from policies.search.allocation import UcbSketches
from policies.search.bandits import UcbTasks
from policies.search.batch import Selection
from policies.search.exploration import ContextualEpsilon, Exploration
from policies.search.generators import DraftGenerator
from policies.search.methods.method import Method
from policies.search.trainer import Training

FLEET = Method(
    name="fleet",
    source="fleet-tune: calibrated draft, expected improvement per second, UCB over sketches and tasks",
    tasks=UcbTasks(),
    sketches=UcbSketches(exploration=0.2, priced=True, prior_visits=1.0, patience=16.0),
    generator=DraftGenerator(),
    acquisition=ExpectedImprovement(),
    selection=Selection(alpha=0.1, radius=1.0, per_second=True, contested=0.25),
    exploration=Exploration(ContextualEpsilon(0.1, 0.3), within_draft=True),
    training=Training("boosted", from_analyzer=True),
    batch=8,
    starts_from="pretrained",
)
"""Pruner's draft on an analyzer that is calibrated online, boosted trees that start from the analyzer, AdaTune's
expected improvement and contextual epsilon, Bansor's bandits, AutoTVM's diversity; batches of 8, because nothing waits
for a round to end. For a quarter of a batch all sketches compete, and one that brings nothing new is worth less by and
by. The bounds of epsilon (10 and 30 percent), C over the sketches, its patience and what the analyzer expects of one,
which counts as a visit, were chosen on the development data: docs/benchmarks.md has what they bring, and how little of
it can be told from the spread."""
