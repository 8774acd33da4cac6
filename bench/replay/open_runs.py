"""Searches in the whole space of a recorded task: one run of one method, without processes or files.

The sketches' spaces are searched as in a tuning run. A recorded candidate gets its recorded outcome. Any other
candidate gets the outcome that a model of the records imputes (:mod:`bench.replay.imputation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.datasets import RecordedTrial
from bench.replay.cost_means import ImputationModel
from bench.replay.imputation import CostImputation
from bench.replay.replay_runs import RANDOM_REASON, TOLERANCE, RecordedTask
from bench.result import BenchError
from fleet_tune.base.task_data import TaskData
from policies.cost_models.protocol import CostModel
from policies.search.methods import Method
from policies.search.search import Proposal, TaskSearch
from policies.search.task_records import as_matrix
from policies.space.sampling import row_keys, sample

SAMPLED = 4096
"""Number of random candidates that estimate the share of the space at the target."""


@dataclass(frozen=True)
class OpenRun:
    """One run in the open space."""

    trials: int
    """Trials until the run arrived, or all its trials if it did not."""
    arrived: bool
    """True if a candidate at the target was found."""
    recorded: int
    """Trials of candidates that are recorded."""
    uninformed: int
    """Trials of the first round that were drawn at random, before there was any record."""
    search_secs: float
    """Seconds of proposing candidates, observing outcomes and training, by the clock of :func:`run_open`."""


class OpenTask(RecordedTask):
    """A task of a dataset whose whole space is searched. ``goal_secs``: the largest cost of a candidate at the target,
    the same for all methods: the best measured cost plus 5%."""

    def __init__(self, data: TaskData, kind: ImputationModel) -> None:
        super().__init__(data)
        self.filling = CostImputation(data, kind)
        self.goal_secs = data.best_secs * (1 + TOLERANCE)

    def search(self, method: Method, seed: int, prior: CostModel | None = None) -> TaskSearch:
        """Return a new search of the open space; ``prior``: the model that it starts from."""
        # With the random numbers of a collection of the same seed, the first candidates would be the recorded ones.
        rng = np.random.default_rng([seed, *f"open {self.data.task.id}".encode()])
        task = self.data
        return TaskSearch(task.sketches, task.task.workload.flop, task.abstraction, method, rng, prior=prior)

    def has(self, proposal: Proposal) -> bool:
        """Return true if the dataset has the proposed candidate."""
        (key,) = row_keys(as_matrix([proposal.decisions], len(proposal.decisions)))
        return key in self._row[proposal.sketch]

    def outcome(self, proposal: Proposal) -> RecordedTrial:
        """Return the recorded outcome of a proposed candidate, or the imputed one if it is not recorded."""
        (outcome,) = self.outcomes([proposal])
        return outcome

    def outcomes(self, proposals: Sequence[Proposal]) -> list[RecordedTrial]:
        """Return :meth:`outcome` of each proposal, in their order. One call for all of them is faster: ``trees`` take
        as long for one candidate as for a hundred."""
        answers: dict[Proposal, RecordedTrial] = {}
        for at, sketch in enumerate(self.data.sketches):
            mine = [each for each in proposals if each.sketch == at and not self.has(each)]
            if not mine:
                continue
            filled = self.filling.fill(at, as_matrix([each.decisions for each in mine], sketch.width))
            for row, each in enumerate(mine):
                answers[each] = RecordedTrial(
                    at,
                    each.decisions,
                    float(filled.cost_secs[row]),
                    build_secs=float(filled.build_secs[row]),
                    measure_secs=float(filled.measure_secs[row]),
                )
        return [answers[each] if each in answers else RecordedTask.outcome(self, each) for each in proposals]

    def share_at_goal(self) -> float:
        """Return the share of the open space whose imputed cost is at the target, estimated by :data:`SAMPLED`
        candidates that are drawn as the method ``random`` draws them."""
        rng = np.random.default_rng(0)
        owners = np.bincount(rng.integers(len(self.data.sketches), size=SAMPLED), minlength=len(self.data.sketches))
        costs = [
            self.filling.fill(at, sample(sketch, int(count), rng)).cost_secs
            for at, (sketch, count) in enumerate(zip(self.data.sketches, owners, strict=True))
            if count
        ]
        return float((np.concatenate(costs) <= self.goal_secs).mean())


def run_open(
    task: OpenTask, method: Method, seed: int, most_trials: int, clock: Callable[[], float] = lambda: 0.0
) -> OpenRun:
    """Run until a candidate at the target is found, or for ``most_trials`` trials, and return the run. ``clock``
    returns seconds; it times the search.

    Raises :class:`BenchError` if the method proposes nothing.
    """
    search = task.search(method, seed)
    trials = recorded = uninformed = 0
    arrived, spent_secs = False, 0.0
    while not arrived and trials < most_trials and not search.exhausted:
        first = not trials
        began = clock()
        proposals = search.propose(method.batch)
        spent_secs += clock() - began
        if not proposals:
            raise BenchError(f"{method.name} proposes nothing after {trials} trials")
        outcomes = task.outcomes(proposals[: most_trials - trials])
        for proposal, outcome in zip(proposals, outcomes, strict=False):
            trials += 1
            recorded += task.has(proposal)
            uninformed += first and proposal.reason == RANDOM_REASON
            arrived = outcome.cost_secs <= task.goal_secs
            if arrived:
                break
        if not arrived and trials < most_trials:
            began = clock()
            search.observe(outcomes)
            search.use_model(search.train(seed))
            spent_secs += clock() - began
    return OpenRun(trials, arrived, recorded, uninformed, spent_secs)
