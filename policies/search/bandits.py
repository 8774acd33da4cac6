"""Which sketch and which task get the next trials: upper confidence bounds (Bansor equations 2 to 6).

Costs are seconds, lower is better; rewards lie in [0, 1], higher is better. Pending trials (granted, not yet observed)
count as visits everywhere, so that an asynchronous scheduler spreads instead of granting everything to one arm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats

EXPLORATION = 0.3
"""The constant C of Bansor equations 3 and 5."""
ALPHA = 0.2
WINDOW = 16
"""Weight of what was gained lately in a task's gradient (Bansor equation 2), and the trials that this is taken over."""


def ucb(rewards: Floats, visits: Floats, exploration: float = EXPLORATION) -> Floats:
    """Bansor equations 3 and 5: ``r_i + C sqrt(2 log N / N_i)`` with ``N`` the sum of all visits, shape ``(k,)``.

    An arm without a visit (or with a number of them that is negative or NaN) scores infinity: it is tried first. A
    reward that is NaN counts as 0, an infinite one as 1 or 0. No arm gives an empty array.
    """
    visits = np.maximum(np.nan_to_num(np.asarray(visits, dtype=np.float64), nan=0.0), 0.0)
    rewards = np.nan_to_num(np.asarray(rewards, dtype=np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    total = max(float(visits.sum()), 1.0)
    bonus = exploration * np.sqrt(2.0 * math.log(total) / np.maximum(visits, 1e-9))
    return np.where(visits > 0, rewards + bonus, np.inf)


def sketch_rewards(best_secs: Floats) -> Floats:
    """Bansor equation 4: the best cost of all sketches divided by each sketch's best, in [0, 1], shape ``(k,)``.

    A sketch with no success (infinite or NaN) earns 0; with no success anywhere all earn 0.
    """
    best = np.asarray(best_secs, dtype=np.float64)
    good = np.isfinite(best) & (best > 0)
    if not good.any():
        return np.zeros(best.shape)
    return np.where(good, best[good].min() / np.where(good, best, 1.0), 0.0)


def allocate(
    best_secs: Floats,
    visits: Floats,
    capacity: Floats,
    count: int,
    exploration: float = EXPLORATION,
    preference: Floats | None = None,
    prices: Floats | None = None,
) -> NDArray[np.int64]:
    """How many of the next ``count`` trials each sketch gets, shape ``(k,)``: one UCB choice after the other.

    Each grant counts as a visit for the next. ``capacity``: candidates a sketch has left; where all is used up, fewer
    than ``count`` are granted. ``preference``: breaks ties and orders untried sketches (higher first; NaN last).
    ``prices``: what a trial of each sketch takes, relative to the cheapest; beyond the paper, a visit weighs that much,
    so that the bound is one on what is gained per second. A price that is not positive and finite counts as 1, a
    capacity that is NaN as 0; failures alone (see :func:`sketch_rewards`) spread the trials evenly.
    """
    price = np.ones(len(visits)) if prices is None else np.asarray(prices, dtype=np.float64)
    price = np.where(np.isfinite(price) & (price > 0), price, 1.0)
    visits = np.asarray(visits, dtype=np.float64) * price
    left = np.asarray(capacity, dtype=np.float64).copy()
    rewards = sketch_rewards(best_secs)
    order = np.nan_to_num(np.zeros(len(visits)) if preference is None else preference, nan=-np.inf)
    granted = np.zeros(len(visits), dtype=np.int64)
    for _ in range(count):
        open_arms = np.flatnonzero(left >= 1)
        if len(open_arms) == 0:
            break
        scores = ucb(rewards, visits, exploration)
        best = max(open_arms, key=lambda at: (scores[at], order[at], -at))
        granted[best] += 1
        visits[best] += price[best]
        left[best] -= 1
    return granted


@dataclass(frozen=True)
class TaskState:
    """What the allocation needs to know of a task.

    ``best_history``: the incumbent's cost in seconds after each observed trial, infinite while all failed;
    ``pending``: trials granted and not yet observed. ``floor_secs``: seconds that no schedule can beat (operations
    divided by the device's peak), 0 where unknown.
    """

    weight: float
    flop: float
    best_history: Sequence[float] = ()
    pending: int = 0
    finished: bool = False
    floor_secs: float = 0.0

    @property
    def visits(self) -> int:
        """Observed and pending trials."""
        return len(self.best_history) + self.pending

    @property
    def best_secs(self) -> float:
        return self.best_history[-1] if self.best_history else math.inf


@dataclass(frozen=True)
class TaskChoice:
    """The task that gets the next trials (its position among the states), and why."""

    index: int
    reason: str


def latency_gradient(state: TaskState, alpha: float = ALPHA, window: int = WINDOW) -> float:
    """Bansor equation 2: seconds of network latency that one more trial is expected to save, not negative.

    ``w (alpha (g(t - dt) - g(t)) / dt + (1 - alpha) min(g(t) / t, g(t) - floor))``: what the last ``window`` trials
    gained, and the optimistic guess that the cost falls like ``1 / t``, but not under the floor. (The paper bounds the
    guess by the throughput of similar tasks; a device's peak is the bound that always exists.) Trials are visits, with
    the pending ones, which count as having gained nothing so far. A task with failures alone is valued like one at a
    hundredth of its device's peak; with no floor known (0, NaN or infinite) its value is infinite.
    """
    trials = max(state.visits, 1)
    best = state.best_secs
    floor = state.floor_secs if 0 < state.floor_secs < math.inf else 0.0
    if not (math.isfinite(best) and best > 0):
        return state.weight * 100.0 * floor / trials if floor > 0 else math.inf
    span = min(window, len(state.best_history) - 1)
    before = state.best_history[-1 - span]
    slope = max(before - best, 0.0) / (span + state.pending) if span > 0 and math.isfinite(before) else 0.0
    guess = min(best / trials, max(best - floor, 0.0))
    return state.weight * (alpha * slope + (1.0 - alpha) * guess)


class TaskAllocation(Protocol):
    """Which of several tasks, all of them tried once, gets the next trials."""

    @property
    def name(self) -> str: ...

    def pick(
        self, states: Sequence[TaskState], open_tasks: Sequence[int], rng: np.random.Generator, round_trials: int
    ) -> TaskChoice:
        """One of ``open_tasks``, at least one index of ``states``. ``round_trials``: trials that count as a visit."""
        ...


@dataclass(frozen=True)
class UcbTasks:
    """Bansor equations 5 and 6: an upper confidence bound on the gradient of the network's latency.

    ``alpha`` and ``window`` (in trials) of :func:`latency_gradient`.
    """

    name: ClassVar[str] = "ucb"
    exploration: float = EXPLORATION
    alpha: float = ALPHA
    window: int = WINDOW

    def pick(
        self,
        states: Sequence[TaskState],
        open_tasks: Sequence[int],
        rng: np.random.Generator,  # noqa: ARG002
        round_trials: int,
    ) -> TaskChoice:
        """See :class:`TaskAllocation`."""
        gradients = _gradients(states, open_tasks, self.alpha, self.window)
        visits = np.array([states[at].visits for at in open_tasks], dtype=np.float64)
        rewards = task_rewards(gradients)
        scores = ucb(rewards, visits / round_trials, self.exploration)
        best = int(scores.argmax())
        return TaskChoice(
            open_tasks[best], f"UCB {scores[best]:.3f}: reward {rewards[best]:.3f} after {int(visits[best])} trials"
        )


@dataclass(frozen=True)
class GradientTasks:
    """Ansor: the largest gradient, or with probability ``epsilon`` a random task."""

    name: ClassVar[str] = "gradient"
    epsilon: float = 0.05
    alpha: float = ALPHA
    window: int = WINDOW

    def pick(
        self,
        states: Sequence[TaskState],
        open_tasks: Sequence[int],
        rng: np.random.Generator,
        round_trials: int,  # noqa: ARG002
    ) -> TaskChoice:
        """See :class:`TaskAllocation`."""
        if rng.random() < self.epsilon:
            return TaskChoice(int(rng.choice(open_tasks)), "random")
        gradients = _gradients(states, open_tasks, self.alpha, self.window)
        best = int(gradients.argmax())
        return TaskChoice(open_tasks[best], f"gradient {gradients[best]:.2e} s a trial")


@dataclass(frozen=True)
class RoundRobinTasks:
    """The task with the fewest trials."""

    name: ClassVar[str] = "round-robin"

    def pick(
        self,
        states: Sequence[TaskState],
        open_tasks: Sequence[int],
        rng: np.random.Generator,  # noqa: ARG002
        round_trials: int,  # noqa: ARG002
    ) -> TaskChoice:
        """See :class:`TaskAllocation`."""
        return TaskChoice(min(open_tasks, key=lambda at: (states[at].visits, at)), "round robin")


def _gradients(states: Sequence[TaskState], open_tasks: Sequence[int], alpha: float, window: int) -> Floats:
    return np.array([latency_gradient(states[at], alpha, window) for at in open_tasks])


class TaskBandit:
    """Grants trials to tasks: by default UCB on the gradient of the network's latency (Bansor equations 2, 5, 6).

    Objective: the sum over tasks of weight times best seconds. Untried tasks come first (Ansor's warm-up, one round of
    round robin), those with the most work foremost; finished tasks never; all others as ``allocation`` says.
    ``round_trials``: trials that count as one visit in a bound; Bansor counts rounds.
    """

    def __init__(self, seed: int = 0, allocation: TaskAllocation | None = None, *, round_trials: int = 1) -> None:
        if round_trials < 1:
            raise ValueError(f"a round has at least one trial, got {round_trials}")
        self._rng = np.random.default_rng(seed)
        self._allocation = allocation or UcbTasks()
        self._round_trials = round_trials

    def choose(self, states: Sequence[TaskState]) -> TaskChoice | None:
        """The task for the next trials; None when every task is finished."""
        open_tasks = [at for at, state in enumerate(states) if not state.finished]
        if not open_tasks:
            return None
        untried = [at for at in open_tasks if states[at].visits == 0]
        if untried:
            index = max(untried, key=lambda at: (states[at].weight * states[at].flop, -at))
            return TaskChoice(index, "untried")
        return self._allocation.pick(states, open_tasks, self._rng, self._round_trials)


def task_rewards(gradients: Floats) -> Floats:
    """Bansor equation 6: each gradient divided by the largest, in [0, 1], shape ``(m,)``.

    An infinite gradient earns 1 and the finite ones are divided by the largest finite one; NaN earns 0, and where no
    gradient is positive all earn 0.
    """
    values = np.maximum(np.nan_to_num(np.asarray(gradients, dtype=np.float64), nan=0.0, posinf=np.inf), 0.0)
    finite = values[np.isfinite(values)]
    largest = float(finite.max(initial=0.0))
    scaled = values / largest if largest > 0 else np.where(np.isinf(values), 1.0, 0.0)
    return np.minimum(scaled, 1.0)


CONVERGENCE_TRIALS = 64
CONVERGENCE_GAIN = 0.01


def is_finished(
    bests: Sequence[float],
    exhausted: bool,
    predicted_gain: float,
    *,
    window: int = CONVERGENCE_TRIALS,
    least_gain: float = CONVERGENCE_GAIN,
) -> str | None:
    """Why a task needs no more trials, or None.

    ``exhausted``: every candidate was measured. Else ``converged``: over the last ``window`` trials the incumbent
    improved by less than ``least_gain`` (a share of its cost), and the model expects less than that of the best next
    candidate (``predicted_gain``, a log ratio; NaN or infinite: unknown, so not converged).
    """
    if exhausted:
        return "exhausted"
    if len(bests) <= window or not math.isfinite(bests[-1]):
        return None
    before = bests[-1 - window]
    recent = (before - bests[-1]) / before if math.isfinite(before) else math.inf
    if recent < least_gain and math.isfinite(predicted_gain) and predicted_gain < least_gain:
        return "converged"
    return None
