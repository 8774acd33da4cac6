"""Ours."""

from __future__ import annotations

from policies.cost_models.registry import GAUSSIAN
from policies.search.acquisition import ExpectedImprovement
from policies.search.allocation import UcbSketches
from policies.search.bandits import UcbTasks
from policies.search.batch import Selection
from policies.search.draft import DraftSettings
from policies.search.exploration import FixedEpsilon
from policies.search.generators import DraftGenerator
from policies.search.methods.method import Method
from policies.search.trainer import Training

FLEET = Method(
    name="fleet",
    source="fleet-tune: a draft, a Gaussian process, expected improvement, UCB over sketches and tasks",
    tasks=UcbTasks(),
    sketches=UcbSketches(exploration_constant=0.2, prior_visits=1.0),
    generator=DraftGenerator(DraftSettings()),
    acquisition=ExpectedImprovement(),
    selection=Selection(radius=0.5, contested=0.5),
    exploration=FixedEpsilon(0.0),
    training=Training(GAUSSIAN, from_analyzer=True, alone=True),
    batch=8,
    starts_from="pretrained",
)
"""Pruner's draft on what is known; a Gaussian process on the task's own records, which starts from a model of other
tasks' records and that from the analyzer (AutoTVM's equation 4); AdaTune's expected improvement, Bansor's bandits;
batches of 8, because nothing waits for a round to end. For half of a batch all sketches compete. Nothing is drawn at
random unless the draft has too few. Which parts these are, and their numbers, was chosen on the recorded sets:
docs/lab/search.md has what each rule brings there, and which were taken out because they brought nothing."""
