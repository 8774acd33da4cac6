"""What a search method is: parts put together."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet_tune.base.domain import StopRule
from policies.cost_models.protocol import CostModel
from policies.measuring.evaluators import RACED
from policies.search.acquisition import Acquisition
from policies.search.allocation import SketchAllocation
from policies.search.bandits import TaskAllocation, TaskBandit
from policies.search.batch import Selection
from policies.search.exploration import Exploration
from policies.search.generators import Generator
from policies.search.trainer import Training


@dataclass(frozen=True)
class Method:
    """A search method; every part can be replaced by itself, with ``dataclasses.replace``.

    ``tasks`` gives rounds to the tasks of a network, ``sketches`` the trials of a round to the sketches of a task, the
    ``generator`` offers candidates of them, ``acquisition`` scores these by what the model of ``training`` predicts (a
    method without a cost model has None), ``selection`` takes a batch of them, and ``exploration`` says how many are
    drawn at random instead.

    ``evaluator``: how its candidates are measured (:mod:`policies.measuring.evaluators`). ``batch``: trials of a round
    in the source: a replay trains the model after each. ``by_round``: the bandits count rounds, and a sketch is chosen
    for a whole one (Ansor, Bansor); else they count trials, and a sketch is chosen for each. ``starts_from``: the name
    of the model that comes with fleet-tune from which it starts, where that applies; empty for none.
    """

    name: str
    source: str
    tasks: TaskAllocation
    sketches: SketchAllocation
    generator: Generator
    acquisition: Acquisition
    exploration: Exploration
    training: Training | None
    batch: int
    selection: Selection = field(default_factory=Selection)
    evaluator: StopRule = RACED
    by_round: bool = False
    starts_from: str = ""

    @property
    def views(self) -> tuple[str, ...]:
        """The views of candidates that the model reads; none without a model."""
        return () if self.training is None else self.training.views

    def views_with(self, prior: CostModel | None) -> tuple[str, ...]:
        """The views that the method's model and the one that it starts from read; none without a model."""
        return self.views if self.training is None or prior is None else (*self.views, *prior.views)

    @property
    def learns_on(self) -> bool:
        """Whether the model is updated from where it stands, instead of made anew from all records."""
        return self.training is not None and self.training.learns_on

    @property
    def learns_online(self) -> bool:
        """Whether a model is trained on what the run measures."""
        return self.training is not None and not self.training.offline

    def make_task_bandit(self, seed: int = 0) -> TaskBandit:
        """The allocation of trials to tasks that belongs to this method."""
        return TaskBandit(seed, self.tasks, round_trials=self.batch if self.by_round else 1)
