"""Allocation of a batch's trials to the sketches of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats
from policies.search.bandits import EXPLORATION_CONSTANT, allocate, sketch_rewards, ucb
from policies.search.task_records import TaskRecords


@dataclass(frozen=True)
class Arms:
    """The sketches of a task as the arms of a bandit."""

    records: TaskRecords
    left: Floats
    """Candidates of each sketch that are neither measured nor pending, ``(k,)``."""
    round_trials: int | None
    """Trials of a round for which one sketch is chosen; None: a sketch is chosen for each trial."""
    expected: Callable[[], tuple[Floats, Floats]] | None
    """With the analyzer: the best cost of each sketch, measured or expected, and the analyzer's preference (higher
    first), each ``(k,)``. None: only measured costs count."""


class SketchAllocation(Protocol):
    """Gives the trials of a batch to the sketches of a task."""

    @property
    def name(self) -> str: ...

    @property
    def joint(self) -> bool:
        """True if candidates of all sketches are chosen together, by their scores alone."""
        ...

    def shares(self, arms: Arms, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Largest number of ``count`` trials that each sketch gets, ``(k,)``; never more than it has candidates
        left."""
        ...


@dataclass(frozen=True)
class JointSketches:
    """All sketches are one space, as in AutoTVM's templates: each may get the whole batch."""

    name: ClassVar[str] = "joint"
    joint: ClassVar[bool] = True

    def shares(self, arms: Arms, count: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002
        """See :class:`SketchAllocation`."""
        return _capacity(arms, count)


@dataclass(frozen=True)
class UniformSketches:
    """Sketches drawn uniformly among those that have candidates left (Ansor). If a sketch cannot fill a round, another
    one takes the rest."""

    name: ClassVar[str] = "uniform"
    joint: ClassVar[bool] = False

    def shares(self, arms: Arms, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """See :class:`SketchAllocation`."""
        capacity = _capacity(arms, count)
        open_arms = np.flatnonzero(capacity)
        if arms.round_trials is not None:
            return _in_turn(rng.permutation(open_arms), capacity, count)
        return np.minimum(np.bincount(rng.choice(open_arms, size=count), minlength=len(capacity)), capacity)


@dataclass(frozen=True)
class UcbSketches:
    """Bansor equations 3 and 4: an upper confidence bound on each sketch's best.

    A sketch without a visit has an infinite bound, so that each gets a visit before the bound chooses. If rounds are
    counted, a visit is a whole round of as many trials as the method's batch has. Then only measured costs count, and
    the next of equal sketches is drawn, as in Ansor. If a sketch cannot fill a round, the next best takes the rest.
    """

    name: ClassVar[str] = "ucb"
    joint: ClassVar[bool] = False
    exploration_constant: float = EXPLORATION_CONSTANT
    """The constant C."""
    prior_visits: float = 0.0
    """Visits that the analyzer's expectation of a sketch counts as, so that a sketch that is far from winning is not
    tried only because it has no visit. This is not in the paper, and has no effect if rounds are counted."""

    def shares(self, arms: Arms, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """See :class:`SketchAllocation`."""
        records = arms.records
        visits = (records.measured + records.pending).astype(np.float64)
        if arms.round_trials is not None:
            # Bansor counts rounds; the best arm takes the whole batch, as far as it has candidates.
            scores = ucb(sketch_rewards(records.bests), visits / arms.round_trials, self.exploration_constant)
            return _in_turn(np.lexsort((-rng.random(len(scores)), -scores)), _capacity(arms, count), count)
        if arms.expected is None:
            return allocate(records.bests, visits, arms.left, count, self.exploration_constant)
        described = np.array([sketch.described for sketch in records.sketches])
        bests, preference = arms.expected()
        return allocate(
            bests, visits + self.prior_visits * described, arms.left, count, self.exploration_constant, preference
        )


def _in_turn(order: NDArray[np.intp], capacity: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Give ``count`` trials to the first arm in ``order``, the rest that it has no capacity for to the second, and so
    on, ``(k,)``."""
    before = np.cumsum(capacity[order]) - capacity[order]
    shares = np.zeros_like(capacity)
    shares[order] = np.clip(count - before, 0, capacity[order])
    return shares


def _capacity(arms: Arms, count: int) -> NDArray[np.int64]:
    return np.minimum(arms.left, count).astype(np.int64)
