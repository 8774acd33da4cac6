"""Bandits that give the next trials to sketches and tasks: upper confidence bounds (Bansor equations 2 to 6).

Costs are seconds, lower is better; rewards lie in [0, 1], higher is better. Pending trials (granted, not yet observed)
count as visits everywhere, so that an asynchronous scheduler spreads instead of granting everything to one arm.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats

EXPLORATION_CONSTANT = 0.3
"""The constant C of Bansor equations 3 and 5."""
ALPHA = 0.2
BETA = 2.0
WINDOW_ROUNDS = 3
"""Bansor equation 2: the weight of the recent gain in a task's gradient, how many times faster than similar tasks a
task is expected to become, and the number of rounds that count as recent. The paper leaves all three open: these are
the values of Ansor's code, which Bansor was built on (``alpha``, ``beta``, ``backward_window_size``)."""
WINDOW = 16
"""Number of trials that count as recent in our gradient. Set by hand."""


def ucb(
    rewards: Floats, visits: Floats, exploration_constant: float = EXPLORATION_CONSTANT, total: float | None = None
) -> Floats:
    """Bansor equations 3 and 5: ``r_i + C sqrt(2 log N / N_i)``, shape ``(k,)``. ``N`` is ``total``, or the sum of the
    visits if ``total`` is None.

    An arm without a visit (or with a number of visits that is negative or NaN) scores infinity: it is tried first. A
    reward that is NaN counts as 0, an infinite one as 1 or 0. Without arms the result is empty.
    """
    visits = np.maximum(np.nan_to_num(np.asarray(visits, dtype=np.float64), nan=0.0), 0.0)
    rewards = np.nan_to_num(np.asarray(rewards, dtype=np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    rounds = max(float(visits.sum()) if total is None else total, 1.0)
    bonus = exploration_constant * np.sqrt(2.0 * math.log(rounds) / np.maximum(visits, 1e-9))
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
    exploration_constant: float = EXPLORATION_CONSTANT,
    preference: Floats | None = None,
) -> NDArray[np.int64]:
    """Number of the next ``count`` trials for each sketch, shape ``(k,)``: one UCB choice after the other.

    Each grant counts as a visit for the next. ``capacity``: candidates a sketch has left; if all are used up, fewer
    than ``count`` are granted. ``preference``: breaks ties and orders untried sketches (higher first; NaN last).
    A capacity that is NaN counts as 0; failures alone (see :func:`sketch_rewards`) spread the trials evenly.
    """
    visits = np.array(visits, dtype=np.float64)
    left = np.asarray(capacity, dtype=np.float64).copy()
    rewards = sketch_rewards(best_secs)
    order = np.nan_to_num(np.zeros(len(visits)) if preference is None else preference, nan=-np.inf)
    granted = np.zeros(len(visits), dtype=np.int64)
    for _ in range(count):
        open_arms = np.flatnonzero(left >= 1)
        if len(open_arms) == 0:
            break
        scores = ucb(rewards, visits, exploration_constant)
        best = max(open_arms, key=lambda at: (scores[at], order[at], -at))
        granted[best] += 1
        visits[best] += 1
        left[best] -= 1
    return granted


@dataclass(frozen=True)
class TaskState:
    """State of a task for the allocation of trials."""

    weight: float
    """Calls of the task's kernel in the network."""
    flop: float
    """Float operations of one run."""
    best_history: Sequence[float] = ()
    """The incumbent's cost in seconds after each observed trial, infinite while all failed."""
    pending: int = 0
    """Trials granted and not yet observed."""
    finished: bool = False
    """True if the task gets no more trials."""
    floor_secs: float = 0.0
    """Seconds that no schedule can beat (operations divided by the device's peak), 0 if unknown."""
    assumed_secs: float = math.inf
    """Cost in seconds by which a task with failures alone is valued; see :func:`_with_assumed_costs`."""
    kind: str = ""
    """Kind of the task (:func:`kind_of_name`): tasks of one kind are similar. Tasks of the empty kind are similar to
    none."""

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


def kind_of_name(name: str) -> str:
    """The kind of a task: workloads that compute the same operators on different shapes have the same kind. It is the
    workload's name up to a blank, without the numbers by which the compiler tells such workloads apart."""
    return re.sub(r"\d+(?=_|$)", "", name.partition(" ")[0])


class Gradient(Protocol):
    """Latency of the network that a task's next visit is expected to save: a number that is not negative."""

    def __call__(self, states: Sequence[TaskState], at: int, round_trials: int, /) -> float:
        """Gradient of the task ``states[at]`` among all tasks; ``round_trials``: trials that count as a visit."""
        ...

    def bound(self, state: TaskState, /) -> float:
        """Latency of the network that all further trials of a task can save at most, infinite if unknown."""
        ...


@dataclass(frozen=True)
class PublishedGradient:
    """Bansor equation 2 (Ansor's), ``|df / dt_i|`` in seconds a round::

        w_i |alpha (g(t) - g(t - dt)) / dt + (1 - alpha) min(-g(t) / t, beta C_i / max_(k in N(i)) V_k - g(t))|

    with ``g(t)`` the best cost after ``t`` rounds, ``dt = window`` rounds, ``C_i`` the task's operations and ``V_k``
    the best throughput of each similar task. Both values of the minimum are losses of latency: the smaller one is the
    larger gain, ``max(g / t, g - beta C / max V)``. A task without similar tasks has only the first value. So has every
    task if ``similar`` is false: Ansor's code finds similar tasks by a tag that the operators of networks do not set.
    The second value does not fall with the rounds, so that a task that stays at less than half the speed of the fastest
    of its kind takes all rounds. Until there are more rounds than the window, the recent gain is unknown and counts as
    0, as in Ansor's code.

    Beyond the paper, pending trials count as visits that gained nothing so far; a task with failures alone is
    valued by its ``assumed_secs``.
    """

    alpha: float = ALPHA
    beta: float = BETA
    window: int = WINDOW_ROUNDS
    similar: bool = False
    """True if tasks of one kind count as similar."""

    def __call__(self, states: Sequence[TaskState], at: int, round_trials: int, /) -> float:
        """See :class:`Gradient`."""
        state = states[at]
        rounds = max(state.visits / round_trials, 1.0)
        best = state.best_secs
        if not _succeeded(state):
            return state.weight * state.assumed_secs / rounds
        ago = len(state.best_history) - 1 - self.window * round_trials
        before = state.best_history[ago] if ago >= 0 else best
        gained = max(before - best, 0.0) if math.isfinite(before) else 0.0
        slope = gained / (self.window + state.pending / round_trials)
        throughputs = [
            each.flop / each.best_secs
            for number, each in enumerate(states)
            if self.similar
            and number != at
            and each.kind
            and each.kind == state.kind
            and each.flop > 0
            and _succeeded(each)
        ]
        guess = best / rounds
        if throughputs:
            guess = max(guess, best - self.beta * state.flop / max(throughputs))
        return state.weight * (self.alpha * slope + (1.0 - self.alpha) * guess)

    def bound(self, state: TaskState, /) -> float:  # noqa: ARG002
        """See :class:`Gradient`: the paper knows none."""
        return math.inf


@dataclass(frozen=True)
class FloorGradient:
    """Our gradient: :func:`latency_gradient`, which counts trials, not rounds, and ignores similar tasks. A task with
    failures alone is valued by its ``assumed_secs``."""

    alpha: float = ALPHA
    window: int = WINDOW

    def __call__(self, states: Sequence[TaskState], at: int, round_trials: int, /) -> float:  # noqa: ARG002
        """See :class:`Gradient`."""
        state = states[at]
        if not _succeeded(state):
            return state.weight * state.assumed_secs / max(state.visits, 1)
        return latency_gradient(state, self.alpha, self.window)

    def bound(self, state: TaskState, /) -> float:
        """See :class:`Gradient`: the difference of best cost and floor. For a task without a success it is
        :data:`_SLOW` times the floor; if it has no floor either, it is infinite."""
        floor = _floor(state)
        if not _succeeded(state):
            return state.weight * _SLOW * floor if floor > 0 else math.inf
        return state.weight * max(state.best_secs - floor, 0.0)


def _succeeded(state: TaskState) -> bool:
    return math.isfinite(state.best_secs) and state.best_secs > 0


def _floor(state: TaskState) -> float:
    """The floor of a task in seconds, 0 if none is known."""
    return state.floor_secs if 0 < state.floor_secs < math.inf else 0.0


_SLOW = 100.0
"""Cost of the slowest kernels, relative to their floor: set by hand."""


def _with_assumed_costs(states: Sequence[TaskState]) -> Sequence[TaskState]:
    """Return the states with an assumed cost for each task that has failures alone. So it gets about as many trials as
    the others, however long it goes on to fail.

    The assumed cost is the task's floor times the median ratio of cost to floor of the other tasks, or times
    :data:`_SLOW` if there is no such ratio. For a task without a floor it is the median cost of the other tasks, and
    infinite if none has a success.
    """
    good = [each for each in states if _succeeded(each)]
    if len(good) == len(states):
        return states
    ratios = [each.best_secs / _floor(each) for each in good if _floor(each) > 0]
    ratio = statistics.median(ratios) if ratios else _SLOW
    usual = statistics.median(each.best_secs for each in good) if good else math.inf

    def assumed(state: TaskState) -> TaskState:
        if _succeeded(state):
            return state
        return replace(state, assumed_secs=ratio * _floor(state) if _floor(state) > 0 else usual)

    return [assumed(each) for each in states]


def latency_gradient(state: TaskState, alpha: float = ALPHA, window: int = WINDOW) -> float:
    """Seconds of network latency that one more trial of a task with a success is expected to save, not negative.

    ``w (alpha (g(t - dt) - g(t)) / dt + (1 - alpha) min(g(t) / t, g(t) - floor))``: the gain of the last ``window``
    trials, and the guess that the cost falls like ``1 / t``, but not under the floor, which no schedule of the device
    can beat. It differs from Bansor's equation 2 (:class:`PublishedGradient`) in the second term: equation 2 takes the
    larger of two gains and bounds neither. ``t`` counts observed and pending trials; pending trials count as having
    gained nothing so far. For a task with failures alone see :class:`FloorGradient`.
    """
    trials = max(state.visits, 1)
    best = state.best_secs
    floor = _floor(state)
    span = min(window, len(state.best_history) - 1)
    before = state.best_history[-1 - span]
    slope = max(before - best, 0.0) / (span + state.pending) if span > 0 and math.isfinite(before) else 0.0
    guess = min(best / trials, max(best - floor, 0.0))
    return state.weight * (alpha * slope + (1.0 - alpha) * guess)


class TaskAllocation(Protocol):
    """Choice of the task that gets the next trials, among tasks that all have been tried."""

    @property
    def name(self) -> str: ...

    def first(self, states: Sequence[TaskState], untried: Sequence[int], round_trials: int) -> Sequence[int]:
        """Return the ``untried`` tasks (indices of ``states``) that get trials before all tasks that were tried."""
        ...

    def pick(
        self, states: Sequence[TaskState], open_tasks: Sequence[int], rng: np.random.Generator, round_trials: int
    ) -> TaskChoice:
        """Choose one of ``open_tasks``, indices of ``states``, of which there is at least one. ``round_trials``: trials
        that count as a visit."""
        ...


@dataclass(frozen=True)
class UcbTasks:
    """Bansor equations 5 and 6: an upper confidence bound on the gradient of the network's latency.

    Beyond the paper, :meth:`Gradient.bound` limits the confidence bound: a task that takes a microsecond cannot save
    more than that, however seldom it was tried. Its first trial waits until no other task is expected to save more.

    ``gradient``: our gradient by default.
    """

    name: ClassVar[str] = "ucb"
    exploration_constant: float = EXPLORATION_CONSTANT
    gradient: Gradient = field(default_factory=FloorGradient)

    def first(self, states: Sequence[TaskState], untried: Sequence[int], round_trials: int) -> Sequence[int]:
        """See :class:`TaskAllocation`."""
        observed = [at for at, state in enumerate(states) if state.best_history and not state.finished]
        largest = _largest(_gradients(self.gradient, states, observed, round_trials))
        return [at for at in untried if self.gradient.bound(states[at]) >= largest]

    def pick(
        self,
        states: Sequence[TaskState],
        open_tasks: Sequence[int],
        rng: np.random.Generator,  # noqa: ARG002
        round_trials: int,
    ) -> TaskChoice:
        """See :class:`TaskAllocation`."""
        gradients = _gradients(self.gradient, states, open_tasks, round_trials)
        visits = np.array([states[at].visits for at in open_tasks], dtype=np.float64)
        rewards = task_rewards(gradients)
        bounds = np.array([self.gradient.bound(states[at]) for at in open_tasks])
        largest = _largest(gradients)
        most = bounds / largest if largest > 0 else np.full(len(bounds), np.inf)
        # N(E) counts the rounds of the whole network, those of finished tasks too.
        rounds = sum(state.visits for state in states) / round_trials
        upper = ucb(rewards, visits / round_trials, self.exploration_constant, rounds)
        scores = np.minimum(upper, np.maximum(most, rewards))
        best = int(scores.argmax())
        return TaskChoice(
            open_tasks[best], f"UCB {scores[best]:.3f}: reward {rewards[best]:.3f} after {int(visits[best])} trials"
        )


@dataclass(frozen=True)
class GradientTasks:
    """Ansor: the largest gradient, or with probability ``epsilon`` a random task."""

    name: ClassVar[str] = "gradient"
    epsilon: float = 0.05
    gradient: Gradient = field(default_factory=PublishedGradient)

    def first(self, states: Sequence[TaskState], untried: Sequence[int], round_trials: int) -> Sequence[int]:  # noqa: ARG002
        """See :class:`TaskAllocation`: all, as in the paper."""
        return untried

    def pick(
        self,
        states: Sequence[TaskState],
        open_tasks: Sequence[int],
        rng: np.random.Generator,
        round_trials: int,
    ) -> TaskChoice:
        """See :class:`TaskAllocation`."""
        if rng.random() < self.epsilon:
            return TaskChoice(int(rng.choice(open_tasks)), "random")
        gradients = _gradients(self.gradient, states, open_tasks, round_trials)
        # Equal ones in turn: those of tasks without a success may all be infinite.
        steepest = np.flatnonzero(gradients == np.nanmax(gradients)).tolist()
        best = min(steepest, key=lambda at: states[open_tasks[at]].visits)
        return TaskChoice(open_tasks[best], f"gradient {gradients[best]:.2e} s")


@dataclass(frozen=True)
class RoundRobinTasks:
    """The task with the fewest trials."""

    name: ClassVar[str] = "round-robin"

    def first(self, states: Sequence[TaskState], untried: Sequence[int], round_trials: int) -> Sequence[int]:  # noqa: ARG002
        """See :class:`TaskAllocation`: all."""
        return untried

    def pick(
        self,
        states: Sequence[TaskState],
        open_tasks: Sequence[int],
        rng: np.random.Generator,  # noqa: ARG002
        round_trials: int,  # noqa: ARG002
    ) -> TaskChoice:
        """See :class:`TaskAllocation`."""
        return TaskChoice(min(open_tasks, key=lambda at: (states[at].visits, at)), "round robin")


def _gradients(gradient: Gradient, states: Sequence[TaskState], open_tasks: Sequence[int], round_trials: int) -> Floats:
    return np.array([gradient(states, at, round_trials) for at in open_tasks])


class TaskBandit:
    """Grants trials to tasks: by default UCB on the gradient of the network's latency (Bansor equations 2, 5, 6).

    Objective: the sum over tasks of weight times best seconds. Untried tasks, which have no whole round yet, come first
    as far as ``allocation`` says so (Ansor's warm-up, one round of round robin), those with the most work foremost.
    ``allocation`` picks among the other tasks. Finished tasks get no trials. ``round_trials``: trials that count as one
    visit in a bound; Bansor counts rounds.
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
        states = _with_assumed_costs(_with_floors_that_hold(states))
        tried = [at for at in open_tasks if states[at].visits >= self._round_trials]
        untried = [at for at in open_tasks if states[at].visits < self._round_trials]
        first = self._allocation.first(states, untried, self._round_trials) if tried and untried else untried
        if first:
            index = max(first, key=lambda at: (states[at].weight * states[at].flop, -at))
            return TaskChoice(index, "untried")
        return self._allocation.pick(states, tried, self._rng, self._round_trials)

    def in_a_row(self, states: Sequence[TaskState], choice: TaskChoice, most: int) -> int:
        """Trials that the task of a choice gets before another task has its turn, at most ``most``; ``most`` for a
        method that counts rounds."""
        if self._round_trials > 1:
            return most
        states, count = list(states), 0
        while count < most:
            states[choice.index] = replace(states[choice.index], pending=states[choice.index].pending + 1)
            count += 1
            following = self.choose(states)
            if following is None or following.index != choice.index:
                break
        return count


def _with_floors_that_hold(states: Sequence[TaskState]) -> Sequence[TaskState]:
    """Return the states with floors that are well below all best costs. All floors are scaled by the same factor.

    A best cost under its floor shows that the device's peak was measured too low, on a busy host for example, by an
    unknown factor. The floors of all tasks follow from this peak, and a task at its floor would get no trials.
    """
    ratios = [state.best_secs / state.floor_secs for state in states if _succeeded(state) and state.floor_secs > 0]
    least = min(ratios, default=1.0)
    if not 0 < least < 1:
        return states
    return [replace(state, floor_secs=_HEADROOM * least * state.floor_secs) for state in states]


_HEADROOM = 0.5
"""Headroom under a best cost that was below its floor: this task is assumed to run at half of the peak."""


def task_rewards(gradients: Floats) -> Floats:
    """Bansor equation 6: each gradient divided by the largest, in [0, 1], shape ``(m,)``. The tasks are those that may
    still get trials.

    An infinite gradient earns 1, and finite ones are divided by the largest finite one. NaN earns 0. If no gradient is
    positive, all earn 0.
    """
    values = np.maximum(np.nan_to_num(np.asarray(gradients, dtype=np.float64), nan=0.0, posinf=np.inf), 0.0)
    largest = _largest(values)
    scaled = values / largest if largest > 0 else np.where(np.isinf(values), 1.0, 0.0)
    return np.minimum(scaled, 1.0)


def _largest(gradients: Floats) -> float:
    """The largest finite gradient, at least 0."""
    return float(gradients[np.isfinite(gradients)].max(initial=0.0))


CONVERGENCE_TRIALS = 64
CONVERGENCE_GAIN = 0.01
"""A task may be finished after so many trials with less than this gain (:func:`has_converged`). Both are set by
hand."""


def has_converged(
    bests: Sequence[float],
    predicted_gain: float,
    *,
    window: int = CONVERGENCE_TRIALS,
    least_gain: float = CONVERGENCE_GAIN,
) -> bool:
    """Return true if a task needs no more trials.

    Then the incumbent improved by less than ``least_gain`` (a share of its cost) over the last ``window`` trials, and
    the gain that the model expects of the best next candidate (``predicted_gain``, a log ratio) is less than that too.
    If ``predicted_gain`` is NaN or infinite, it is unknown, and the task has not converged.
    """
    if len(bests) <= window or not math.isfinite(bests[-1]):
        return False
    before = bests[-1 - window]
    recent = (before - bests[-1]) / before if math.isfinite(before) else math.inf
    return recent < least_gain and math.isfinite(predicted_gain) and predicted_gain < least_gain
