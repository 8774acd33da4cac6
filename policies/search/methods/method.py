"""A search method: parts put together."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet_tune.base.domain import StopRule
from policies.cost_models.protocol import CostModel
from policies.measuring.stop_rules import RACED
from policies.search.acquisition import Acquisition
from policies.search.allocation import SketchAllocation
from policies.search.bandits import TaskAllocation, TaskBandit
from policies.search.batch import Selection
from policies.search.exploration import Epsilon
from policies.search.generators import Generator
from policies.search.trainer import Training


@dataclass(frozen=True)
class Method:
    """A search method. Every part can be replaced on its own with ``dataclasses.replace``."""

    name: str
    """Name in reports."""
    source: str
    """Origin of the method, in one line."""
    tasks: TaskAllocation
    """Gives rounds to the tasks of a network."""
    sketches: SketchAllocation
    """Gives the trials of a round to the sketches of a task."""
    generator: Generator
    """Offers candidates of a sketch."""
    acquisition: Acquisition
    """Scores offered candidates by the model's prediction."""
    exploration: Epsilon
    """Share of candidates that are drawn at random instead."""
    training: Training | None
    """The cost model and its training; None for a method without one."""
    batch: int
    """Trials of a round in the source; a replay trains the model after each round, a run when its records have grown by
    a share."""
    selection: Selection = field(default_factory=Selection)
    """Takes a batch of the scored candidates."""
    stop_rule: StopRule = RACED
    """The way its candidates are measured (:mod:`policies.measuring.stop_rules`)."""
    by_round: bool = False
    """True if the bandits count rounds and choose a sketch for a whole one (Ansor, Bansor); else they count trials and
    choose a sketch for each."""
    starts_from: str = ""
    """Name of fleet-tune's own model that the method starts from if that model applies; empty for none."""

    @property
    def views(self) -> tuple[str, ...]:
        """The views of candidates that the model reads; none without a model."""
        return () if self.training is None else self.training.views

    def views_with(self, prior: CostModel | None) -> tuple[str, ...]:
        """The views that the method's model and the one that it starts from read; none without a model."""
        return self.views if self.training is None or prior is None else (*self.views, *prior.views)

    @property
    def shares_model(self) -> bool:
        """True if all tasks of a device class have one model."""
        training = self.training
        return training is not None and training.model.transfers and not training.of_each_task

    @property
    def learns_on(self) -> bool:
        """True if an update continues from the model's current weights; other models are made anew from all records."""
        return self.training is not None and self.training.learns_on

    @property
    def learns_online(self) -> bool:
        """True if a model is trained on what the run measures."""
        return self.training is not None and not self.training.offline

    def make_task_bandit(self, seed: int = 0) -> TaskBandit:
        """Make the allocation of trials to tasks that belongs to this method."""
        return TaskBandit(seed, self.tasks, round_trials=self.batch if self.by_round else 1)
