"""The search of one task: draft, verify, select (DESIGN section 4), with nothing but arrays and plain values.

A :class:`TaskSearch` puts together the parts that a preset chooses: it holds what was measured and what is pending
(:mod:`policies.search.task_records`), allocates the trials of a batch to the sketches (:mod:`policies.search.bandits`),
lets a generator offer candidates of them (:mod:`policies.search.generators`), and selects among those
(:mod:`policies.search.batch`) by what is predicted (:mod:`policies.search.prediction`). ``observe`` takes outcomes, in
any order, also those of an earlier run.

Deterministic: the same seed and the same sequence of calls propose the same candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fleet_tune.domain import DeviceAbstraction
from fleet_tune.sketch import Sketch
from policies.analysis.quantities import Floats
from policies.cost_models.global_local import GlobalLocalModel
from policies.cost_models.protocol import CostModel, targets
from policies.search.acquisition import ContextualEpsilon, Exploration, FixedEpsilon
from policies.search.bandits import allocate
from policies.search.batch import Offered, best_gain, choose
from policies.search.draft import innermost_tiles
from policies.search.generators import Search, make_generator
from policies.search.methods import Preset
from policies.search.pools import OpenSpace, Pool, PoolSpace, Space
from policies.search.prediction import Predictor
from policies.search.task_records import Observation, Placed, Proposal, TaskRecords
from policies.search.trainer import Trainer, TrainingSet

__all__ = ["Observation", "Pool", "Proposal", "TaskSearch", "TrainingSet"]

RANDOM_TRIES = 8
EXPECTED_BEST_SAMPLE = 512
"""Random candidates of a sketch from which the analyzer's best is taken for what the sketch is worth."""
HOPELESS_TRIALS = 3
"""Failures alone after which a sketch is no longer valued by the analyzer."""


class TaskSearch:
    """Search of one task over its sketches; see the module's docstring.

    ``flop``: float operations of one run of the kernel. ``pools``: what may be proposed of each sketch, one pool for
    each in their order; None: the whole of each. ``prior``: a model trained on other records, from which the search and
    its models start (:mod:`policies.search.trainer`). Not thread-safe: one owner calls it.
    """

    def __init__(
        self,
        sketches: Sequence[Sketch],
        flop: float,
        device: DeviceAbstraction,
        preset: Preset,
        rng: np.random.Generator,
        pools: Sequence[Pool] | None = None,
        prior: CostModel | None = None,
    ) -> None:
        if not sketches:
            raise ValueError("a task needs at least one sketch")
        if pools is not None and [pool.sketch.id for pool in pools] != [sketch.id for sketch in sketches]:
            raise ValueError("pools are given for each sketch of the task, in their order")
        self._preset = preset
        self._exploration: Exploration = (
            ContextualEpsilon(*preset.epsilon_bounds) if preset.epsilon is None else FixedEpsilon(preset.epsilon)
        )
        self._rng = rng
        self._spaces: list[Space] = (
            [OpenSpace(sketch, device) for sketch in sketches]
            if pools is None
            else [PoolSpace(pool, device) for pool in pools]
        )
        self._records = TaskRecords(sketches)
        views = (*preset.views, *(prior.views if prior is not None and preset.learned_model else ()))
        self._predictor = Predictor(sketches, flop, device, analyzer=preset.generator == "draft", views=views)
        self._generator = make_generator(Search(self._spaces, self._records, self._predictor, preset, rng))
        self._trainer = Trainer(preset, prior if preset.learned_model else None)
        self._first = self._trainer.first
        self._predictor.use_model(self._first)
        self._predicted_gain = math.inf
        self._expected: Floats | None = None

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Whether every candidate of every sketch is measured or pending."""
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
        """Expected improvement (log ratio) of the best candidate offered for the last batch; infinite before any
        success, and while nothing was predicted."""
        return self._predicted_gain

    def knows(self, sketch: int, decisions: tuple[int, ...]) -> bool:
        """Whether a valid candidate was measured or is pending; ValueError where it is not of this sketch."""
        return self._records.knows(Proposal(sketch, decisions, math.inf, ""))

    # -- what comes back ------------------------------------------------------------------------------------------

    def observe(self, observations: Iterable[Observation]) -> None:
        """Take in outcomes; a candidate seen before only changes if it is now faster (a failure was mended).

        ValueError for a candidate that is not of this task.
        """
        self._predictor.add(self._records.add(observations))
        costs = self._records.ordered_costs
        self._predictor.set_costs(costs, self._records.ordered_build_secs)
        if self._predictor.model is self._first and isinstance(self._first, GlobalLocalModel):
            self._first.level(self._predictor.features, targets(costs))

    def release(self, candidates: Iterable[Placed]) -> None:
        """Forget pending candidates that will never be measured; they may be proposed again."""
        self._records.release(candidates)

    def training_set(self) -> TrainingSet:
        """All observed candidates in the joint layout; failures count as slower than the slowest success."""
        costs, layout = self._records.ordered_costs, self._predictor.layout
        groups = np.zeros(len(costs), dtype=np.int64)
        return TrainingSet(self._predictor.features, targets(costs), groups, layout.names, layout.offset_column)

    def train(self, seed: int) -> CostModel | None:
        """The method's model after everything observed; None where it has none, or there is no success.

        See :class:`policies.search.trainer.Trainer`. The search itself does not change: hand the model to
        :meth:`use_model`, here or in another process.
        """
        if not self._preset.learned_model or not (self._preset.offline or math.isfinite(self.best_secs)):
            return None
        return self._trainer.train({"": self.training_set()}, seed)

    def use_model(self, model: CostModel | None) -> None:
        """Verify with this trained model from now on; None goes back to what was used before the first one."""
        self._predictor.use_model(model)

    # -- what goes out --------------------------------------------------------------------------------------------

    def propose(self, count: int) -> list[Proposal]:
        """At most ``count`` candidates that are neither measured nor pending, the most promising first; now pending.

        Fewer where the space is nearly exhausted.
        """
        if count < 0:
            raise ValueError(f"cannot propose {count} candidates")
        if count == 0 or self.exhausted:
            return []
        shares = self._shares(count)
        wanted = np.flatnonzero(shares)
        offered = [self._offer(int(at), len(wanted), int(shares[at])) for at in wanted]
        self._predicted_gain = self._gain(offered)
        exploit = count - self._random_count(offered, count)
        reason = self._preset.acquisition if math.isfinite(self.best_secs) else self._preset.generator
        proposals = [
            each.offered.proposal(each.row, f"{reason} {each.score:.3g}")
            for each in choose(offered, shares, self._records, self._predictor, self._preset, exploit)
        ]
        self._records.mark(proposals)
        if self._preset.explore == "draft" and len(proposals) < count:
            explored = self._untried(offered, count - len(proposals))
            self._records.mark(explored)
            proposals += explored
        for _ in range(RANDOM_TRIES):
            if len(proposals) >= count or self.exhausted:
                break
            drawn = self._uniform(shares, proposals, count - len(proposals))
            self._records.mark(drawn)
            proposals += drawn
        return proposals

    def _left(self) -> NDArray[np.float64]:
        """Candidates of each sketch that are neither measured nor pending."""
        known = (len(self._records.known(at)) for at in range(len(self._spaces)))
        return np.array(
            [float(space.size - count) for space, count in zip(self._spaces, known, strict=True)], dtype=np.float64
        )

    def _offer(self, sketch: int, sketches: int, count: int) -> Offered:
        drafted = self._generator.offer(sketch, sketches, count)
        return Offered(sketch, drafted, *self._predictor.drafted(sketch, drafted))

    def _gain(self, offered: Sequence[Offered]) -> float:
        return best_gain(offered, self.best_secs) if any(map(len, offered)) else math.inf

    # -- which sketches -------------------------------------------------------------------------------------------

    def _shares(self, count: int) -> NDArray[np.int64]:
        """Trials of this batch for each sketch."""
        capacity = np.minimum(self._left(), count)
        if self._preset.sketch_policy == "joint":
            return capacity.astype(np.int64)
        if self._preset.sketch_policy == "uniform":
            open_arms = np.flatnonzero(capacity >= 1)
            turns = count if self._preset.turn == "trial" else 1
            chosen = self._rng.choice(open_arms, size=turns)
            granted = np.bincount(np.resize(chosen, count), minlength=len(capacity))
            return np.minimum(granted, capacity.astype(np.int64))
        bests, preference = self._records.bests, None
        if self._preset.generator == "draft":
            bests, preference = self._expected_bests()
        visits = (self._records.measured + self._records.pending).astype(np.float64)
        if self._preset.turn == "round":
            # Bansor counts rounds; one grant then takes the whole batch.
            granted = allocate(bests, visits / self._preset.batch, capacity, 1, self._preset.exploration, preference)
            return np.minimum(granted * count, capacity.astype(np.int64))
        prices = self._records.trial_prices if self._preset.per_second else None
        return allocate(bests, visits, capacity, count, self._preset.exploration, preference, prices)

    def _expected_bests(self) -> tuple[Floats, Floats]:
        """The best of each sketch for the bandit, and which sketch is to be preferred, by the analyzer.

        Until a sketch has a success of its own, it stands for the best that the analyzer expects of it, so that a cold
        start does not spend its trials evenly on sketches that cannot win.
        """
        if self._expected is None:
            self._expected = np.array([self._analytic_best(space) for space in self._spaces])
        bests, expected = self._records.bests, self._expected
        known = np.isfinite(bests)
        if known.any():
            ratio = float(np.median(bests[known] / expected[known]))
            expected = expected * max(ratio, 1.0)
        hopeless = self._records.measured >= HOPELESS_TRIALS
        return np.where(known, bests, np.where(hopeless, math.inf, expected)), -np.log(expected)

    def _analytic_best(self, space: Space) -> float:
        """The analyzer's best candidate of a sketch among random ones, in seconds."""
        if not space.sketch.statements:
            return self._predictor.prior_secs
        found = space.draw(EXPECTED_BEST_SAMPLE, self._rng, frozenset()).log_secs
        good = found[np.isfinite(found)]
        return math.exp(float(good.min())) if len(good) else self._predictor.prior_secs

    # -- exploration ----------------------------------------------------------------------------------------------

    def _random_count(self, offered: Sequence[Offered], count: int) -> int:
        """How many of the batch are random: a fixed share, or AdaTune's contextual epsilon (equation 3)."""
        plans = self._random_plans() if self._preset.epsilon_plans else offered
        means = np.concatenate([each.mean for each in plans]) if plans else np.empty(0)
        deviations = np.concatenate([each.deviation for each in plans]) if plans else np.empty(0)
        share = self._exploration.share(means, deviations, self.best_secs)
        # The fraction left over becomes a chance, so that small batches explore too, in the long run.
        return math.floor(share * count + self._rng.random())

    def _random_plans(self) -> list[Offered]:
        """Random candidates of all sketches for the contextual epsilon; none while nothing is predicted."""
        if not self._predictor.has_model:
            return []
        return self._drawn(np.empty(0, dtype=np.int64), self._preset.epsilon_plans, feasible=False)

    def _untried(self, offered: Sequence[Offered], count: int) -> list[Proposal]:
        """Random candidates among the more promising half of the best one of every innermost tile that was neither
        measured nor is pending."""
        choices = [(each, row) for each in offered for row in self._untried_tiles(each)]
        choices.sort(key=lambda choice: float(choice[0].mean[choice[1]]))
        promising = choices[: max(len(choices) // 2, count)]
        return [
            promising[at][0].proposal(promising[at][1], "exploration")
            for at in self._rng.permutation(len(promising))[:count]
        ]

    def _untried_tiles(self, offered: Offered) -> list[int]:
        """The best offered candidate of every innermost tile that was neither measured nor is pending."""
        records, sketch = self._records, offered.sketch
        known = np.concatenate([records.measured_rows(sketch), records.pending_rows(sketch)])
        ids = innermost_tiles(records.sketches[sketch], np.concatenate([offered.drafted.matrix, known]))
        tiles, tried = ids[: len(offered)], ids[len(offered) :]
        order = np.argsort(offered.mean, kind="stable")
        order = order[~np.isin(tiles[order], tried)]
        firsts: list[int] = order[np.unique(tiles[order], return_index=True)[1]].tolist()
        return firsts

    def _uniform(self, shares: NDArray[np.int64], proposals: Sequence[Proposal], count: int) -> list[Proposal]:
        """Random candidates of what the sketches' shares leave, then of any sketch. Fewer where draws repeat."""
        taken = np.bincount([proposal.sketch for proposal in proposals], minlength=len(shares))
        rest = np.repeat(np.arange(len(shares)), np.maximum(shares - taken, 0))
        drawn = self._drawn(rest, count, feasible=self._preset.generator == "draft")
        return [each.proposal(row, "random") for each in drawn for row in range(len(each))]

    def _drawn(self, wanted: NDArray[np.int64], count: int, *, feasible: bool) -> list[Offered]:
        """At most ``count`` random candidates that are not known, first of the sketches in ``wanted``, then of any.

        ``feasible``: those that the analyzer rules out come last.
        """
        open_arms = np.flatnonzero(self._left() >= 1)
        picked = self._rng.permutation(wanted[np.isin(wanted, open_arms)])[:count]
        picked = np.concatenate([picked, self._rng.choice(open_arms, size=count - len(picked))])
        drawn = []
        for at in np.unique(picked).tolist():
            most = int((picked == at).sum())
            found = self._spaces[at].draw(8 * most if feasible else most, self._rng, self._records.known(at))
            if feasible:
                found = found.take(np.argsort(~np.isfinite(found.log_secs), kind="stable")[:most])
            drawn.append(Offered(at, found, *self._predictor.drafted(at, found)))
        return drawn
