"""Searches on a recorded dataset: one run of one method, without processes, clocks or files. Nothing is measured anew.

A run proposes rounds of candidates from the dataset, with the batch size of its
:class:`policies.search.methods.Method`, and gets their recorded outcomes. It trains the method's model after each
round, or after every so many rounds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from bench.datasets import RecordedTrial, observations
from bench.result import BenchError
from fleet_tune.base.task_data import TaskData
from policies.cost_models.protocol import CostModel
from policies.search.acquisition import ExpectedImprovement, PredictedMean
from policies.search.allocation import UcbSketches, UniformSketches
from policies.search.bandits import (
    GradientTasks,
    RoundRobinTasks,
    TaskAllocation,
    TaskState,
    UcbTasks,
    kind_of_name,
)
from policies.search.draft import DraftSettings
from policies.search.exploration import ContextualEpsilon, FixedEpsilon
from policies.search.generators import DraftGenerator, GeneticGenerator, LatentGenerator
from policies.search.methods import Method
from policies.search.search import Proposal, TaskSearch
from policies.space.pools import Pool
from policies.space.sampling import row_keys

TOLERANCE = 0.05
"""A run has arrived when the cost of its best candidate is at most this share above the dataset's best."""
CURVE = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of trials at which a curve has the best so far."""

Effect = Literal["draft", "sketch-ucb", "contextual-epsilon", "ei"]
EFFECTS: tuple[Effect, ...] = ("draft", "sketch-ucb", "contextual-epsilon", "ei")
_PLANS = 20
RANDOM_REASON = "random"
"""The reason of a proposal that was drawn at random."""


@dataclass(frozen=True)
class Replayed:
    """One run on one task."""

    trials: int
    """Trials until a candidate within :data:`TOLERANCE` of the best was measured."""
    trial_secs: float
    """Seconds that these trials took to build and measure when they were recorded."""
    curve: tuple[float, ...]
    """The dataset's best cost divided by the best cost so far, in (0, 1], at each number of trials of :data:`CURVE`.
    It is 0 before the first success, and keeps its last value after the end of the run."""
    uninformed: int = 0
    """Trials of the first round, until the run arrived, that were drawn at random before there was any record. This is
    the whole first round for a method that predicts nothing without records."""


class RecordedTask:
    """A task of a dataset with its pools of recorded candidates. All runs of a process share it."""

    def __init__(self, data: TaskData) -> None:
        self.data = data
        self.pools = tuple(Pool(sketch, matrix) for sketch, matrix in zip(data.sketches, data.decisions, strict=True))
        self._row = [
            dict(zip(row_keys(matrix), data.rows(at).tolist(), strict=True)) for at, matrix in enumerate(data.decisions)
        ]
        self.floor_secs = data.task.workload.flop / data.abstraction.peak_flops

    def search(self, method: Method, seed: int, prior: CostModel | None = None) -> TaskSearch:
        """Return a new search among the recorded candidates; ``prior``: the model that it starts from."""
        rng = np.random.default_rng([seed, *self.data.task.id.encode()])
        task = self.data
        return TaskSearch(task.sketches, task.task.workload.flop, task.abstraction, method, rng, self.pools, prior)

    def row(self, proposal: Proposal) -> int:
        """Return the row of a proposed candidate in the data."""
        (key,) = row_keys(np.array([proposal.decisions], dtype=np.int64).reshape(1, -1))
        return int(self._row[proposal.sketch][key])

    def outcome(self, proposal: Proposal) -> RecordedTrial:
        """Return the recorded outcome of a proposed candidate."""
        (outcome,) = observations(self.data, [self.row(proposal)])
        return outcome

    def round(self, search: TaskSearch, method: Method, seed: int, train_every: int = 1) -> list[RecordedTrial]:
        """Make one round of ``search``: propose candidates, let it observe their outcomes, and train the model if
        :func:`trains_after` says so. Return the outcomes. Raises :class:`BenchError` if nothing is proposed."""
        return [outcome for _, outcome in self.played(search, method, seed, train_every)]

    def played(
        self, search: TaskSearch, method: Method, seed: int, train_every: int = 1
    ) -> list[tuple[Proposal, RecordedTrial]]:
        """Make a round as :meth:`round` does, and return each proposal with its outcome."""
        pairs = [(proposal, self.outcome(proposal)) for proposal in search.propose(method.batch)]
        if not pairs:
            raise BenchError(f"{method.name} proposes nothing, {search.observed} of {len(self.data)} are measured")
        search.observe([outcome for _, outcome in pairs])
        if trains_after(search.observed, method.batch, train_every):
            search.use_model(search.train(seed))
        return pairs


def trains_after(trials: int, batch: int, train_every: int) -> bool:
    """Return true if the model is trained after the round that ends with so many ``trials`` of a task: after the first
    round and every ``train_every`` rounds later."""
    return (-(-trials // batch) - 1) % train_every == 0


def run_task(
    task: RecordedTask,
    method: Method,
    seed: int,
    curve_trials: int = CURVE[-1],
    prior: CostModel | None = None,
    train_every: int = 1,
) -> Replayed:
    """Run a method on one task until it arrives, and for at least ``curve_trials`` trials (or until all candidates are
    measured).

    ``prior``: the model that the run starts from. ``train_every``: see :func:`trains_after`. Raises
    :class:`BenchError` if the run does not arrive.
    """
    search = task.search(method, seed, prior)
    best_secs, costs, secs = task.data.best_secs, list[float](), list[float]()
    arrived = uninformed = 0
    while not search.exhausted and (not arrived or len(costs) < curve_trials):
        first = not costs
        for proposal, outcome in task.played(search, method, seed, train_every):
            uninformed += first and not arrived and proposal.reason == RANDOM_REASON
            costs.append(outcome.cost_secs)
            secs.append(outcome.trial_secs)
            if not arrived and outcome.cost_secs <= best_secs * (1 + TOLERANCE):
                arrived = len(costs)
    if not arrived:
        raise BenchError(f"{method.name} measured all {len(costs)} candidates and did not find the best")
    best = np.minimum.accumulate(costs)
    curve = tuple(float(best_secs / best[min(count, len(best)) - 1]) for count in CURVE)
    return Replayed(arrived, float(np.sum(secs[:arrived])), curve, uninformed)


def network_sums(tasks: Sequence[RecordedTask], method: Method, seed: int) -> Iterator[float]:
    """Yield after each trial the weighted sum of the tasks' best costs in seconds: infinite while a task has no
    success.

    The method's bandit gives each round to one task. The sums end when all candidates of all tasks are measured.
    """
    searches = [task.search(method, seed) for task in tasks]
    bandit = method.make_task_bandit(seed)
    weights = np.array([task.data.task.weight for task in tasks], dtype=np.float64)
    histories: list[list[float]] = [[] for _ in tasks]
    while True:
        states = [
            TaskState(
                weight=task.data.task.weight,
                flop=task.data.task.workload.flop,
                best_history=tuple(history),
                finished=search.exhausted,
                floor_secs=task.floor_secs,
                kind=kind_of_name(task.data.task.workload.name),
            )
            for task, search, history in zip(tasks, searches, histories, strict=True)
        ]
        choice = bandit.choose(states)
        if choice is None:
            return
        at = choice.index
        for outcome in tasks[at].round(searches[at], method, seed):
            histories[at].append(min(outcome.cost_secs, *histories[at][-1:]) if histories[at] else outcome.cost_secs)
            bests = np.array([history[-1] if history else math.inf for history in histories])
            yield float(weights @ bests)


def best_sum(tasks: Sequence[RecordedTask]) -> float:
    """Return the least possible weighted sum of the tasks' costs, in seconds."""
    return float(sum(task.data.task.weight * task.data.best_secs for task in tasks))


def run_network(tasks: Sequence[RecordedTask], method: Method, seed: int) -> int:
    """Return the trials until the weighted sum of the tasks' best costs is within :data:`TOLERANCE` of the least
    possible sum. Raises :class:`BenchError` if it never is."""
    goal_secs = best_sum(tasks) * (1 + TOLERANCE)
    trials = 0
    for trials, secs in enumerate(network_sums(tasks, method, seed), 1):
        if secs <= goal_secs:
            return trials
    raise BenchError(f"{method.name} measured all {trials} candidates and did not find the best")


@dataclass(frozen=True)
class Course:
    """A run of all tasks together for a number of trials."""

    trials: int
    """Number of trials."""
    steps: tuple[tuple[int, float], ...]
    """Each number of trials after which the weighted sum of the tasks' best costs became less, with the new sum as a
    multiple of the least possible sum."""

    @property
    def best(self) -> float:
        """The sum at the end, as a multiple of the least possible sum; infinite if a task has no success."""
        return self.steps[-1][1] if self.steps else math.inf

    def trials_to(self, goal: float) -> int:
        """Return the trials until the sum was at most ``goal`` times the least possible sum; all trials if it never
        was."""
        return next((trial for trial, value in self.steps if value <= goal), self.trials)


def run_course(tasks: Sequence[RecordedTask], method: Method, seed: int, trials: int) -> Course:
    """Run all tasks together for ``trials`` trials, or until all candidates are measured, and return the course."""
    possible, steps, done = best_sum(tasks), list[tuple[int, float]](), 0
    for done, secs in enumerate(islice(network_sums(tasks, method, seed), trials), 1):
        if math.isfinite(secs) and (not steps or secs / possible < steps[-1][1]):
            steps.append((done, secs / possible))
    return Course(done, tuple(steps))


def near_best(data: TaskData) -> int:
    """Return the number of a task's candidates within :data:`TOLERANCE` of the best: with one of them a run has
    arrived."""
    return int((data.cost_secs <= data.best_secs * (1 + TOLERANCE)).sum())


def task_policies(method: Method) -> tuple[TaskAllocation, ...]:
    """Return each rule that allocates trials to tasks. Rules with a gradient use that of the method's own rule."""
    assert isinstance(method.tasks, UcbTasks)
    gradient = method.tasks.gradient
    return (UcbTasks(gradient=gradient), GradientTasks(gradient=gradient), RoundRobinTasks())


# -- effects on and off ---------------------------------------------------------------------------------------------


def with_effect(method: Method, effect: Effect, on: bool) -> Method:
    """Return ``method`` with one effect of the papers switched on or off and everything else unchanged. If the method
    is already so, it is returned as it is.

    - ``draft``: candidates come from the draft on the calibrated analyzer (Pruner). Off: they come from a genetic
      search on the learned model, which then does not start from the analyzer.
    - ``sketch-ucb``: Bansor equations 3 and 4. Off: sketches are chosen uniformly.
    - ``contextual-epsilon``: AdaTune equation 3. Off: epsilon is 0.05.
    - ``ei``: AdaTune equations 1 and 2. Off: candidates are scored by the prediction.
    """
    if has_effect(method, effect) == on:
        return method
    training = method.training
    if effect == "draft":
        if on:
            return dataclasses.replace(method, generator=DraftGenerator(_draft_settings(method)))
        return dataclasses.replace(
            method,
            generator=GeneticGenerator(_draft_settings(method)),
            training=None if training is None else dataclasses.replace(training, from_analyzer=False),
        )
    if effect == "sketch-ucb":
        return dataclasses.replace(method, sketches=UcbSketches() if on else UniformSketches())
    if effect == "contextual-epsilon":
        epsilon = ContextualEpsilon(plans=_PLANS) if on else FixedEpsilon(0.05)
        return dataclasses.replace(method, exploration=epsilon)
    return dataclasses.replace(method, acquisition=ExpectedImprovement() if on else PredictedMean())


def has_effect(method: Method, effect: Effect) -> bool:
    """Return true if the method has the effect."""
    return {
        "draft": isinstance(method.generator, DraftGenerator),
        "sketch-ucb": isinstance(method.sketches, UcbSketches),
        "contextual-epsilon": isinstance(method.exploration, ContextualEpsilon),
        "ei": isinstance(method.acquisition, ExpectedImprovement),
    }[effect]


def _draft_settings(method: Method) -> DraftSettings:
    generator = method.generator
    if isinstance(generator, DraftGenerator | GeneticGenerator | LatentGenerator):
        return generator.settings
    return DraftSettings()


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Return the quartiles ``q1``, ``median`` and ``q3``."""
    low, median, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return {"q1": float(low), "median": float(median), "q3": float(high)}


def overall(by_task: Mapping[str, float]) -> float:
    """Return the geometric mean over the tasks."""
    return float(np.exp(np.mean(np.log(list(by_task.values())))))
