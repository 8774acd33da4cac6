"""The search of one task: draft, verify and select, on arrays and plain values alone.

A :class:`TaskSearch` runs the parts of a method. It holds the measured (:mod:`policies.search.training_table`) and the
pending candidates (:mod:`policies.search.task_records`), allocates the trials of a batch to the sketches
(:mod:`policies.search.allocation`), lets a generator offer candidates (:mod:`policies.search.generators`), and selects
among those (:mod:`policies.search.batch`) by their predictions (:mod:`policies.search.prediction`). ``observe`` takes
outcomes, in any order, also those of an earlier run.

Deterministic: the same seed and the same sequence of calls propose the same candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import Candidate, DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.arrays import Floats
from policies.cost_models.protocol import CostModel
from policies.search.allocation import Arms
from policies.search.annealing import Chains
from policies.search.batch import choose
from policies.search.candidates import CandidateSet
from policies.search.found_elsewhere import FoundElsewhere, with_adapted
from policies.search.generators import SearchState
from policies.search.methods.method import Method
from policies.search.predicted_gain import PredictedGain
from policies.search.prediction import Predictor
from policies.search.spaces import OpenSpace, PoolSpace, Space
from policies.search.task_records import Observation, Proposal
from policies.search.trainer import Trainer
from policies.search.training_table import TrainingTable
from policies.space.pools import Pool

__all__ = ["Observation", "Proposal", "TaskSearch"]

RANDOM_TRIES = 8
EXPECTED_BEST_SAMPLE = 512
"""Random candidates of a sketch: the analyzer's time of the best one is the expected best of the sketch. Set by
hand."""
HOPELESS_TRIALS = 3
"""Trials without a success after which the analyzer's expectation of a sketch no longer counts. Set by hand."""
UNDESCRIBED_SHARE = 0.5
"""Expected time of a sketch that is not described, as a share of the best time that the analyzer expects of the others,
so that such a sketch is tried in the first batch. The row-wise sketch of softmax, norms and sums took 0.69 to 0.86 of
the best measured time of the others on the development set (0.14 to 0.32 of the time that the analyzer expects, which
is too long there)."""


class TaskSearch:
    """Search of one task over its sketches; see the module's docstring. Not thread-safe: one owner calls it.

    Args:
        sketches: the design spaces of the task.
        flop: float operations of one run of the kernel.
        device: the device that the candidates are for.
        method: the parts of the search.
        rng: source of all random numbers.
        pools: candidates that may be proposed, one pool for each sketch in their order; None: every candidate.
        prior: a model trained on other records, from which the search and its models start
            (:mod:`policies.search.trainer`).
        seeds: candidates of this workload found elsewhere, as the position of a sketch and decisions
            (:mod:`policies.search.found_elsewhere`).
        adapted: candidates adapted from similar tasks.
    """

    def __init__(
        self,
        sketches: Sequence[Sketch],
        flop: float,
        device: DeviceAbstraction,
        method: Method,
        rng: np.random.Generator,
        pools: Sequence[Pool] | None = None,
        prior: CostModel | None = None,
        seeds: Iterable[tuple[int, tuple[int, ...]]] = (),
        adapted: Iterable[tuple[int, tuple[int, ...]]] = (),
    ) -> None:
        if not sketches:
            raise ValueError("a task needs at least one sketch")
        if pools is not None and [pool.sketch.id for pool in pools] != [sketch.id for sketch in sketches]:
            raise ValueError("pools are given for each sketch of the task, in their order")
        self._method = method
        self._rng = rng
        # A GPU refuses nineteen of twenty random tilings of a product: threads or shared memory are over its limits.
        # MetaSchedule draws until enough candidates are left, and counts only those.
        self._draws_feasible = method.generator.with_analyzer or device.kind == "cuda"
        self._spaces: list[Space] = (
            [OpenSpace(sketch, device) for sketch in sketches]
            if pools is None
            else [PoolSpace(pool, device) for pool in pools]
        )
        self._table = TrainingTable(sketches, device, method.views_with(prior))
        self._records = self._table.records
        self._predictor = Predictor(
            self._table,
            flop,
            analyzer=method.generator.with_analyzer,
            alone=method.training is not None and method.training.alone,
        )
        chains = [Chains() for _ in sketches]
        self._search = SearchState(self._spaces, chains, self._records, self._predictor, method.acquisition, rng)
        self._trainer = None if method.training is None else Trainer(method.training, prior)
        self._first = None if self._trainer is None else self._trainer.first
        self._predictor.use_model(self._first)
        self._gain = PredictedGain(len(sketches))
        self._expected: Floats | None = None
        self._found = FoundElsewhere(seeds, adapted, self._predictor)

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def table(self) -> TrainingTable:
        """The observations; read-only for others."""
        return self._table

    @property
    def exhausted(self) -> bool:
        """True if every candidate of every sketch is measured or pending."""
        return not self._left().any()

    @property
    def best_secs(self) -> float:
        """Cost of the best observed candidate, infinite while there is none."""
        return self._records.best_secs

    @property
    def observed(self) -> int:
        return len(self._records.order)

    @property
    def pending(self) -> int:
        return int(self._records.pending.sum())

    @property
    def predicted_gain(self) -> float:
        """Expected improvement of the best candidate (:class:`policies.search.predicted_gain.PredictedGain`). It stays
        infinite if the tasks share a model, which does not predict the seconds of each."""
        return self._gain.largest

    def knows(self, sketch: int, decisions: tuple[int, ...]) -> bool:
        """Return true if a valid candidate was measured or is pending. Raise ValueError if it does not belong to the
        sketch."""
        return self._records.knows(Proposal(sketch, decisions, math.inf, ""))

    # -- outcomes and models --------------------------------------------------------------------------------------

    def observe(self, observations: Iterable[Observation]) -> None:
        """Take in outcomes. A candidate seen before only changes if it is now faster (also after a failure), or its
        cost was revised.

        Raise ValueError for a candidate that is not of this task.
        """
        self._table.observe(observations)
        self._predictor.refresh()
        # Failures alone tell nothing of the task's seconds.
        if self._first is not None and self._predictor.model is self._first and math.isfinite(self.best_secs):
            self._first.level(self._table.features, self._table.log_secs)

    def release(self, candidates: Iterable[Proposal | Candidate]) -> None:
        """Forget pending candidates that will never be measured; they may be proposed again."""
        self._records.release(candidates)

    def release_all(self) -> None:
        """:meth:`release` every pending candidate."""
        self._records.release_all()

    def train(self, seed: int) -> CostModel | None:
        """Train the method's model on all observations; None if the method has no model, or nothing succeeded.

        See :class:`policies.search.trainer.Trainer`. The search itself does not change: hand the model to
        :meth:`use_model`, here or in another process.
        """
        if self._trainer is None or not (self._trainer.offline or math.isfinite(self.best_secs)):
            return None
        return self._trainer.train({"": self._table.training_set()}, seed)

    def use_model(self, model: CostModel | None) -> None:
        """Predict with this trained model from now on; None: with the prior as before the first training, if any."""
        self._predictor.use_model(self._first if model is None else model)

    # -- proposals ------------------------------------------------------------------------------------------------

    def propose(self, count: int) -> list[Proposal]:
        """Propose up to ``count`` candidates that are neither measured nor pending, the most promising first; they are
        now pending.

        Fewer are proposed if the space is nearly exhausted, or as long as seeds are left: seeds make batches of their
        own.
        """
        if count < 0:
            raise ValueError(f"cannot propose {count} candidates")
        if count == 0 or self.exhausted:
            return []
        seeds = self._found.next_seeds(count)
        if seeds:
            return seeds
        are_open = self._left() >= 1
        shares = self._shares(count)
        contested = self._method.selection.contested
        wanted = np.flatnonzero(are_open) if contested else np.flatnonzero(shares)
        least = np.maximum(shares, math.ceil(contested * count))
        offered = [self._offer(int(at), len(wanted), int(least[at])) for at in wanted]
        if not self._method.shares_model:
            self._gain.note(offered, self.best_secs, are_open)
        adapted = self._found.promising(offered, count)
        offered = [each.without(adapted) for each in offered]
        count -= len(adapted)
        exploit = count - self._random_count(offered, count)
        method = self._method
        reason = method.acquisition.name if math.isfinite(self.best_secs) else method.generator.name
        proposals: list[Proposal] = []
        if contested:
            # The fractional part becomes a probability: a batch of one is not always contested.
            joint = math.floor(contested * exploit + self._rng.random())
            proposals, offered = self._chosen(offered, shares, joint, reason, joint=True)
        share, _ = self._chosen(offered, shares, exploit - len(proposals), reason, joint=method.sketches.joint)
        proposals += share
        for _ in range(RANDOM_TRIES):
            if len(proposals) >= count or self.exhausted:
                break
            drawn = self._uniform(shares, proposals, count - len(proposals))
            self._records.mark(drawn)
            proposals += drawn
        return self._as_measured(with_adapted(proposals, adapted))

    def _chosen(
        self, offered: Sequence[CandidateSet], shares: NDArray[np.int64], count: int, reason: str, *, joint: bool
    ) -> tuple[list[Proposal], list[CandidateSet]]:
        """Choose up to ``count`` of the offered candidates, which are then pending; also return the rest of the
        offer."""
        method = self._method
        proposals = choose(
            offered,
            shares,
            self._records,
            method.acquisition,
            method.selection,
            count,
            reason,
            joint=joint,
        )
        self._records.mark(proposals)
        return proposals, [each.without(proposals) for each in offered]

    def _as_measured(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals with predictions for the most rows alone, because only those are measured."""
        times = self._table.over_rows(proposals).tolist()
        return [
            replace(each, predicted_secs=each.predicted_secs / time)
            for each, time in zip(proposals, times, strict=True)
        ]

    def _left(self) -> NDArray[np.float64]:
        """Candidates of each sketch that are neither measured nor pending."""
        tried = (len(self._records.tried_keys(at)) for at in range(len(self._spaces)))
        return np.array(
            [float(space.size - count) for space, count in zip(self._spaces, tried, strict=True)], dtype=np.float64
        )

    def _offer(self, sketch: int, sketches: int, count: int) -> CandidateSet:
        drafted = self._method.generator.offer(self._search, sketch, sketches, self._method.selection.enough(count))
        return self._predictor.predicted(sketch, drafted)

    # -- choice of sketches ---------------------------------------------------------------------------------------

    def _shares(self, count: int) -> NDArray[np.int64]:
        """Trials of this batch for each sketch."""
        method = self._method
        expected = self._expected_bests if method.generator.with_analyzer else None
        arms = Arms(self._records, self._left(), method.batch if method.by_round else None, expected)
        return method.sketches.shares(arms, count, self._rng)

    def _expected_bests(self) -> tuple[Floats, Floats]:
        """Best cost of each sketch for the bandit, and the analyzer's preference among the sketches. A sketch without a
        success counts with the best cost that the analyzer expects of it, so that a cold start does not spend its
        trials evenly on sketches that cannot win."""
        if self._expected is None:
            self._expected = self._analytic_bests()
        bests, expected = self._records.bests, self._expected
        succeeded = np.isfinite(bests)
        # For a sketch that is not described, the expectation is a guess, which says nothing about the others.
        described = np.array([space.sketch.described for space in self._spaces])
        known = succeeded & np.isfinite(expected) & described
        if known.any():
            # If sketches are slower than expected, all others are expected to be slower too. If they are faster, the
            # others are not expected to be faster, so that the bandit stays with measured sketches. Set by hand.
            ratio = float(np.median(bests[known] / expected[known]))
            expected = expected * max(ratio, 1.0)
        hopeless = self._records.measured >= HOPELESS_TRIALS
        return np.where(succeeded, bests, np.where(hopeless, math.inf, expected)), -np.log(expected)

    def _analytic_bests(self) -> Floats:
        """The analyzer's seconds of the best random candidate of each sketch, ``(k,)``; infinite where none is worth
        building. A sketch that is not described is expected to be better than the others (:data:`UNDESCRIBED_SHARE`):
        mostly its rule was written for such kernels, and a few trials show whether it is better."""
        bests = np.array([self._analytic_best(space) for space in self._spaces])
        known = bests[np.isfinite(bests)]
        if len(known):
            self._predictor.expect(UNDESCRIBED_SHARE * float(known.min()))
        return np.where(np.isnan(bests), self._predictor.prior_secs, bests)

    def _analytic_best(self, space: Space) -> float:
        """The analyzer's seconds of the best random candidate of one sketch; NaN for a sketch that is not described."""
        if not space.sketch.described:
            return math.nan
        log_secs = space.draw(EXPECTED_BEST_SAMPLE, self._rng, frozenset()).log_secs
        return math.exp(float(log_secs.min())) if len(log_secs) else math.inf

    # -- exploration ----------------------------------------------------------------------------------------------

    def _random_count(self, offered: Sequence[CandidateSet], count: int) -> int:
        """Number of random candidates in the batch: a fixed share, or AdaTune's contextual epsilon (equation 3)."""
        epsilon = self._method.exploration
        plans = self._random_plans(epsilon.plans) if epsilon.plans else offered
        means = np.concatenate([each.mean for each in plans]) if plans else np.empty(0)
        deviations = np.concatenate([each.deviation for each in plans]) if plans else np.empty(0)
        share = epsilon.share(means, deviations, self.best_secs)
        # The fractional part becomes a probability, so that small batches explore too, in the long run.
        return math.floor(share * count + self._rng.random())

    def _random_plans(self, count: int) -> list[CandidateSet]:
        """Random candidates of all sketches for the contextual epsilon; none while nothing is predicted."""
        if not self._predictor.has_model:
            return []
        return self._drawn(np.empty(0, dtype=np.int64), count, feasible=False)

    def _uniform(self, shares: NDArray[np.int64], proposals: Sequence[Proposal], count: int) -> list[Proposal]:
        """Random candidates from the rest of the sketches' shares, then of any sketch. Fewer if draws repeat."""
        taken = np.bincount([proposal.sketch for proposal in proposals], minlength=len(shares))
        rest = np.repeat(np.arange(len(shares)), np.maximum(shares - taken, 0))
        drawn = self._drawn(rest, count, feasible=self._draws_feasible)
        return [each.proposal(row, "random") for each in drawn for row in range(len(each))]

    def _drawn(self, wanted: NDArray[np.int64], count: int, *, feasible: bool) -> list[CandidateSet]:
        """Draw up to ``count`` random candidates that are not known, first of the sketches in ``wanted``, then of any.

        ``feasible``: those that the analyzer rules out come last.
        """
        open_arms = np.flatnonzero(self._left() >= 1)
        picked = self._rng.permutation(wanted[np.isin(wanted, open_arms)])[:count]
        picked = np.concatenate([picked, self._rng.choice(open_arms, size=count - len(picked))])
        drawn = []
        for at in np.unique(picked).tolist():
            most = int((picked == at).sum())
            drafted = self._spaces[at].draw(8 * most if feasible else most, self._rng, self._records.tried_keys(at))
            if feasible:
                drafted = drafted.take(np.argsort(~np.isfinite(drafted.log_secs), kind="stable")[:most])
            drawn.append(self._predictor.predicted(at, drafted))
        return drawn
