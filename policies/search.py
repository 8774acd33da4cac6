"""The search of one task: draft, verify, select (DESIGN section 4), with nothing but arrays and plain values.

A ``TaskSearch`` holds what was measured and what is pending. ``propose`` drafts candidates of the sketches that the
bandit picks, scores them with the learned model (or with the calibrated analyzer while there is none), and selects a
batch by expected improvement per second, diverse and away from what is pending. ``observe`` takes outcomes, in any
order, also those of an earlier run.

Deterministic: the same seed and the same sequence of calls propose the same candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_tune.domain import DeviceAbstraction
from fleet_tune.sketch import Sketch
from policies.acquisition import epsilon_of_secs, improvement_of_secs
from policies.bandits import allocate
from policies.calibration import Calibration, calibrate, uncalibrated
from policies.cost_model import CostModel, Groups, targets
from policies.draft import Drafted, DraftSettings, draft, evaluate, innermost_tiles
from policies.features import SYMBOLIC, FeatureTable, joint_layout
from policies.presets import Preset
from policies.quantities import Floats
from policies.sampling import Matrix, decision_ids, is_valid, log_coordinates, row_keys, sample, space_size, unique_rows
from policies.selection import greedy, neighbourhood_discount, per_second

CALIBRATION_LIMIT = 256
"""Most recent records that the calibration uses: its cost is cubic in them."""
RANDOM_TRIES = 8
BUILD_SECS = 0.25
BUILD_SECS_PER_OPERATION = 0.0008
"""Prior of a trial's time: what a build takes at least, and for each straight-line vector operation."""
MEASURE_RUNS = 10
MEASURE_SECS = 0.05
MEASURED_RADIUS = 0.7
"""Radius around measured candidates, relative to that around pending ones: their neighbours teach little."""
UNDESCRIBED_PEAK_SHARE = 0.05
"""Share of the peak that a candidate of an undescribed sketch is expected to reach before any record."""


@dataclass(frozen=True)
class Observation:
    """Outcome of a candidate. ``cost_secs``: seconds per run; infinite (or NaN) for a failure that blames the
    candidate. ``trial_secs``: what the trial took to build and measure, 0 where unknown."""

    sketch: int
    decisions: tuple[int, ...]
    cost_secs: float
    trial_secs: float = 0.0


@dataclass(frozen=True)
class Proposal:
    """A candidate worth a trial. ``predicted_secs``: seconds per run; ``reason``: why it was chosen."""

    sketch: int
    decisions: tuple[int, ...]
    predicted_secs: float
    reason: str


@dataclass(frozen=True)
class TrainingSet:
    """What the learner trains on: features of ``n`` candidates, log seconds ``(n,)``, all finite, the task of each row
    ``(n,)``, names of the symbolic columns.

    ``offset_column``: the analyzer's log seconds, None where not every sketch of the task is described.
    """

    features: FeatureTable
    log_secs: Floats
    groups: Groups
    names: tuple[str, ...]
    offset_column: int | None


def _matrix(rows: Iterable[Sequence[int] | NDArray[np.int64]], width: int) -> Matrix:
    """Decision vectors as a matrix, also where there are none or they are empty."""
    listed = list(rows)
    return np.array(listed, dtype=np.int64).reshape(len(listed), width)


@dataclass(frozen=True)
class _Scored:
    """Drafted candidates of one sketch that are neither measured nor pending, with their predictions, all (n,)."""

    sketch: int
    drafted: Drafted
    mean: Floats
    deviation: Floats


class TaskSearch:
    """Search of one task over its sketches; see the module's docstring.

    ``flop``: float operations of one run of the kernel. Not thread-safe: one owner calls it.
    """

    def __init__(
        self,
        sketches: Sequence[Sketch],
        flop: float,
        device: DeviceAbstraction,
        preset: Preset,
        rng: np.random.Generator,
    ) -> None:
        if not sketches:
            raise ValueError("a task needs at least one sketch")
        self._sketches = tuple(sketches)
        self._device = device
        self._preset = preset
        self._rng = rng
        self._layout = joint_layout(self._sketches, device)
        self._sizes = [space_size(sketch) for sketch in self._sketches]
        self._prior_secs = max(flop, 1.0) / (device.peak_flops * UNDESCRIBED_PEAK_SHARE)
        self._model: CostModel | None = None
        self._costs: list[dict[bytes, float]] = [{} for _ in self._sketches]
        self._pending: list[dict[bytes, tuple[int, ...]]] = [{} for _ in self._sketches]
        self._trial_secs = np.zeros(len(self._sketches))  # sum over the observed candidates
        # Joint features of the measured candidates, in the order of their first observation.
        self._order: list[tuple[int, bytes]] = []
        self._features: list[FeatureTable] = []
        self._analytic: list[float] = []
        self._calibration: Calibration | None = None
        self._predicted_gain = math.inf
        self._analytic_best: Floats | None = None

    @property
    def exhausted(self) -> bool:
        """Whether every candidate of every sketch is measured or pending."""
        return all(self._left(at) == 0 for at in range(len(self._sketches)))

    @property
    def best_secs(self) -> float:
        """Cost of the best observed candidate, infinite while there is none."""
        return min((min(costs.values(), default=math.inf) for costs in self._costs), default=math.inf)

    @property
    def observed(self) -> int:
        return len(self._order)

    @property
    def pending(self) -> int:
        return sum(len(pending) for pending in self._pending)

    @property
    def predicted_gain(self) -> float:
        """Expected improvement (log ratio) of the best candidate of the last batch; infinite before any record."""
        return self._predicted_gain

    def _left(self, sketch: int) -> int:
        return self._sizes[sketch] - len(self._costs[sketch].keys() | self._pending[sketch].keys())

    # -- what comes back ------------------------------------------------------------------------------------------

    def observe(self, observations: Iterable[Observation]) -> None:
        """Take in outcomes; a candidate seen before only changes if it is now faster (a failure was mended).

        ValueError for a candidate that is not of this task.
        """
        fresh: list[list[tuple[int, ...]]] = [[] for _ in self._sketches]
        for outcome in observations:
            if not 0 <= outcome.sketch < len(self._sketches):
                raise ValueError(f"there is no sketch {outcome.sketch} in this task")
            key = self._key(outcome.sketch, outcome.decisions)
            cost = outcome.cost_secs if math.isfinite(outcome.cost_secs) and outcome.cost_secs > 0 else math.inf
            self._pending[outcome.sketch].pop(key, None)
            costs = self._costs[outcome.sketch]
            if key not in costs:
                self._trial_secs[outcome.sketch] += max(outcome.trial_secs, 0.0)
                fresh[outcome.sketch].append(outcome.decisions)
                costs[key] = cost
            costs[key] = min(costs[key], cost)
            self._calibration = None
        for at, rows in enumerate(fresh):
            if rows:
                matrix = _matrix(rows, self._sketches[at].width)
                known = evaluate(self._sketches[at], matrix, self._device)
                self._features.append(self._layout.table(at, known.features))
                self._analytic.extend(self._base(known.analytic_log_secs))
                self._order.extend((at, key) for key in row_keys(matrix))

    def release(self, proposals: Iterable[Proposal]) -> None:
        """Forget pending candidates that will never be measured; they may be proposed again."""
        for proposal in proposals:
            self._pending[proposal.sketch].pop(self._key(proposal.sketch, proposal.decisions), None)

    def training_set(self) -> TrainingSet:
        """All observed candidates in the joint layout; failures count as slower than the slowest success."""
        features = (
            FeatureTable.concatenate(self._features)
            if self._features
            else FeatureTable({SYMBOLIC: np.empty((0, len(self._layout.names)), dtype=np.float32)})
        )
        costs = np.array([self._costs[at][key] for at, key in self._order], dtype=np.float64)
        groups = np.zeros(len(costs), dtype=np.int64)
        return TrainingSet(features, targets(costs), groups, self._layout.names, self._layout.offset_column)

    def train(self, seed: int) -> CostModel | None:
        """A new model trained on everything observed, as the method wants it; None where it has none, or no success.

        The search itself does not change: hand the model to :meth:`use_model`, here or in another process.
        """
        if not self._preset.learned_model or not math.isfinite(self.best_secs):
            return None
        known = self.training_set()
        model = self._preset.make_model(seed, known.offset_column)
        model.fit(known.features, known.log_secs, known.groups)
        return model

    def use_model(self, model: CostModel | None) -> None:
        """Verify with this trained model from now on; None goes back to the calibrated analyzer."""
        self._model = model

    # -- what goes out --------------------------------------------------------------------------------------------

    def propose(self, count: int) -> list[Proposal]:
        """At most ``count`` candidates that are neither measured nor pending, the most promising first; now pending.

        Fewer where the space is nearly exhausted.
        """
        if count < 0:
            raise ValueError(f"cannot propose {count} candidates")
        if count == 0 or self.exhausted:
            return []
        proposals: list[Proposal] = []
        shares = self._shares(count)
        wanted = np.flatnonzero(shares)
        settings = self._preset.draft.shared_by(len(wanted))
        scored = [self._score(int(at), settings) for at in wanted] if self._preset.generator != "random" else []
        random_count = self._random_count(scored, count)
        taken = self._take_best(scored, shares, count - random_count) if scored else []
        proposals.extend(taken)
        for _ in range(RANDOM_TRIES):
            if len(proposals) >= count or self.exhausted:
                break
            proposals.extend(self._take_random(scored, count - len(proposals)))
        return proposals

    def _shares(self, count: int) -> NDArray[np.int64]:
        """Trials of this batch for each sketch."""
        capacity = np.array([min(self._left(at), count) for at in range(len(self._sketches))], dtype=np.float64)
        if self._preset.sketch_policy == "uniform":
            granted = np.zeros(len(capacity), dtype=np.int64)
            open_arms = np.flatnonzero(capacity >= 1)
            chosen = self._rng.choice(open_arms, size=count)
            np.add.at(granted, chosen, 1)
            return np.minimum(granted, capacity.astype(np.int64))
        best = np.array([min(costs.values(), default=math.inf) for costs in self._costs])
        visits = np.array(
            [len(costs) + len(pending) for costs, pending in zip(self._costs, self._pending, strict=True)],
            dtype=np.float64,
        )
        preference = np.zeros(len(best))
        if self._preset.generator == "draft":
            # Until a sketch has a success of its own, it stands for the best that the analyzer expects of it, so that a
            # cold start does not spend its trials evenly on sketches that cannot win.
            expected = self._expected_best()
            known = np.isfinite(best)
            if known.any():
                ratio = float(np.median(best[known] / expected[known]))
                expected = expected * max(ratio, 1.0)
            tried = np.array([len(costs) for costs in self._costs])
            best = np.where(known, best, np.where(tried >= 3, math.inf, expected))
            preference = -np.log(expected)
        prices = self._prices() if self._preset.acquisition == "ei" else np.ones(len(best))
        return allocate(best, visits, capacity, count, self._preset.exploration, preference, prices)

    def _prices(self) -> Floats:
        """What a trial of each sketch takes, divided by what one of the cheapest takes; 1 where none is known."""
        observed = np.array([len(costs) for costs in self._costs])
        known = (observed > 0) & (self._trial_secs > 0)
        if not known.any():
            return np.ones(len(observed))
        mean = self._trial_secs / np.maximum(observed, 1)
        return np.where(known, mean / mean[known].min(), 1.0)

    def _expected_best(self) -> Floats:
        """The analyzer's best candidate of each sketch among a small draft, in seconds; found once."""
        if self._analytic_best is None:
            bests = []
            for sketch in self._sketches:
                if sketch.statements:
                    found = evaluate(sketch, sample(sketch, 512, self._rng), self._device)
                    good = found.log_secs[np.isfinite(found.log_secs)]
                    bests.append(math.exp(float(good.min())) if len(good) else self._prior_secs)
                else:
                    bests.append(self._prior_secs)
            self._analytic_best = np.array(bests)
        return self._analytic_best

    def _base(self, analytic_log_secs: Floats) -> Floats:
        """The analyzer's log seconds, the prior's where the sketch is not described."""
        return np.where(np.isnan(analytic_log_secs), math.log(self._prior_secs), analytic_log_secs)

    def _calibrated(self) -> Calibration:
        if self._calibration is None:
            if not self._order:
                self._calibration = uncalibrated()
            else:
                known = self.training_set()
                recent = slice(-CALIBRATION_LIMIT, None)
                ratio = known.log_secs - np.array(self._analytic)
                self._calibration = calibrate(known.features.view(SYMBOLIC)[recent], ratio[recent])
        return self._calibration

    def _predict(self, sketch: int, features: NDArray[np.float32], analytic: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation of log seconds: the model's, else the calibrated analyzer's."""
        joint = self._layout.table(sketch, features)
        if self._model is not None:
            mean, deviation = self._model.predict(joint)
            if self._preset.generator != "draft":
                return mean, deviation
        correction, spread = self._calibrated().correct(joint.view(SYMBOLIC))
        calibrated = self._base(analytic) + correction
        if self._model is None:
            return calibrated, spread
        # Two independent opinions: their mean, and a deviation that says how far apart they are.
        disagreement = 0.5 * np.abs(mean - calibrated)
        return 0.5 * (mean + calibrated), np.sqrt(0.5 * (deviation**2 + spread**2) + disagreement**2)

    def _score(self, sketch: int, settings: DraftSettings) -> _Scored:
        """Draft candidates of a sketch and predict them."""

        def fitness(features: NDArray[np.float32], analytic: Floats) -> Floats:
            if self._preset.generator == "model":
                if self._model is None:
                    return self._rng.random(len(features))
                return self._model.predict(self._layout.table(sketch, features))[0]
            return self._predict(sketch, features, analytic)[0]

        drafted = draft(self._sketches[sketch], self._device, self._rng, settings, fitness, self._seeds(sketch))
        drafted = drafted.take(self._unseen(sketch, drafted.matrix))
        mean, deviation = self._predict(sketch, drafted.features, drafted.analytic_log_secs)
        return _Scored(sketch, drafted, mean, deviation)

    def _seeds(self, sketch: int) -> Matrix | None:
        """The best measured candidates of a sketch, from which the genetic search starts again."""
        costs = sorted((cost, key) for key, cost in self._costs[sketch].items() if math.isfinite(cost))[:16]
        if not costs:
            return None
        return _matrix((np.frombuffer(key, dtype=np.int64) for _, key in costs), self._sketches[sketch].width)

    def _unseen(self, sketch: int, matrix: Matrix) -> NDArray[np.intp]:
        """Rows that are neither measured nor pending."""
        costs, pending = self._costs[sketch], self._pending[sketch]
        return np.array(
            [at for at, key in enumerate(row_keys(matrix)) if key not in costs and key not in pending], dtype=np.intp
        )

    def _random_count(self, scored: Sequence[_Scored], count: int) -> int:
        """How many of the batch are random: a fixed share, or AdaTune's contextual epsilon (equation 3)."""
        if self._preset.generator == "random":
            return count
        share = self._preset.epsilon
        if share is None:
            low, high = self._preset.epsilon_bounds
            means = np.concatenate([each.mean for each in scored])
            share = epsilon_of_secs(
                means, np.concatenate([each.deviation for each in scored]), self.best_secs, low, high
            )
        # The fraction left over becomes a chance, so that small batches explore too, in the long run.
        return math.floor(share * count + self._rng.random())

    def _take_best(self, scored: Sequence[_Scored], shares: NDArray[np.int64], count: int) -> list[Proposal]:
        """The best of each sketch's share by the acquisition function; now pending."""
        chosen: list[tuple[float, Proposal]] = []
        best_secs = self.best_secs
        self._predicted_gain = math.inf if not math.isfinite(best_secs) else 0.0
        # With nothing measured, the gain is over the slowest drafted candidate: one reference for all sketches.
        slowest = max((float(each.mean.max()) for each in scored if len(each.mean)), default=0.0)
        reference_secs = best_secs if math.isfinite(best_secs) else math.exp(slowest)
        for each in scored:
            if len(each.mean) == 0:
                continue
            sketch = self._sketches[each.sketch]
            if self._preset.acquisition == "ei":
                gain = improvement_of_secs(each.mean, each.deviation, reference_secs)
                if math.isfinite(best_secs):
                    self._predicted_gain = max(self._predicted_gain, float(gain.max()))
                secs = BUILD_SECS + BUILD_SECS_PER_OPERATION * each.drafted.unrolled
                secs = secs + np.maximum(MEASURE_RUNS * np.exp(each.mean), MEASURE_SECS)
                scores = per_second(gain, secs)
            else:
                scores = np.exp(each.mean.min() - each.mean)
            points = log_coordinates(sketch, each.drafted.matrix)
            pending = _matrix(self._pending[each.sketch].values(), sketch.width)
            together = decision_ids(sketch, np.concatenate([each.drafted.matrix, pending]))
            if self._preset.radius > 0:
                scores = scores * neighbourhood_discount(points, log_coordinates(sketch, pending), self._preset.radius)
                measured = _matrix(
                    (np.frombuffer(key, dtype=np.int64) for key in self._costs[each.sketch]), sketch.width
                )
                near = log_coordinates(sketch, measured)
                scores = scores * neighbourhood_discount(points, near, MEASURED_RADIUS * self._preset.radius)
            rows = greedy(
                scores,
                together[: len(points)],
                points,
                int(shares[each.sketch]),
                self._preset.alpha,
                self._preset.radius,
                together[len(points) :],
            )
            reason = self._preset.acquisition if math.isfinite(best_secs) else "draft"
            chosen.extend(
                (float(scores[row]), self._proposal(each, row, f"{reason} {scores[row]:.3g}")) for row in rows
            )
        chosen.sort(key=lambda pair: -pair[0])
        taken = [proposal for _, proposal in chosen[:count]]
        for proposal in taken:
            self._mark(proposal)
        return taken

    def _proposal(self, scored: _Scored, row: int, reason: str) -> Proposal:
        decisions = tuple(int(value) for value in scored.drafted.matrix[row])
        return Proposal(scored.sketch, decisions, math.exp(float(scored.mean[row])), reason)

    def _take_random(self, scored: Sequence[_Scored], count: int) -> list[Proposal]:
        """Random candidates: of the draft where the method explores there, else of the whole space; now pending."""
        taken: list[Proposal] = []
        if self._preset.explore == "draft" and scored:
            choices = [(each, row) for each in scored for row in self._untried_tiles(each)]
            # The most promising half of them, in random order.
            choices.sort(key=lambda choice: float(choice[0].mean[choice[1]]))
            promising = choices[: max(len(choices) // 2, count)]
            for at in self._rng.permutation(len(promising))[:count]:
                each, row = promising[at]
                taken.append(self._proposal(each, row, "exploration"))
                self._mark(taken[-1])
        if len(taken) < count:
            taken.extend(self._uniform(count - len(taken)))
        return taken

    def _untried_tiles(self, scored: _Scored) -> list[int]:
        """The best drafted candidate of every innermost tile that was neither measured nor is pending."""
        sketch = self._sketches[scored.sketch]
        known = _matrix(
            (
                np.frombuffer(key, dtype=np.int64)
                for key in (*self._costs[scored.sketch], *self._pending[scored.sketch])
            ),
            sketch.width,
        )
        ids = innermost_tiles(sketch, np.concatenate([scored.drafted.matrix, known]))
        drafted, tried = ids[: len(scored.mean)], set(ids[len(scored.mean) :].tolist())
        best: dict[int, int] = {}
        for row in np.argsort(scored.mean, kind="stable").tolist():
            tile = int(drafted[row])
            if tile not in tried:
                best.setdefault(tile, row)
        return list(best.values())

    def _uniform(self, count: int) -> list[Proposal]:
        """Candidates drawn uniformly from sketches that have some left; now pending. Fewer where draws repeat."""
        taken: list[Proposal] = []
        open_arms = [at for at in range(len(self._sketches)) if self._left(at)]
        picked = self._rng.choice(open_arms, size=count)
        for at in sorted(set(picked.tolist())):
            wanted = int((picked == at).sum())
            sketch = self._sketches[at]
            drawn = evaluate(sketch, sample(sketch, 8 * wanted + 8, self._rng), self._device)
            rows = unique_rows(drawn.matrix)
            rows = rows[self._unseen(at, drawn.matrix[rows])]
            if self._preset.generator == "draft":
                rows = rows[np.argsort(~np.isfinite(drawn.log_secs[rows]), kind="stable")]
            drawn = drawn.take(rows[:wanted])
            mean, deviation = self._predict(at, drawn.features, drawn.analytic_log_secs)
            each = _Scored(at, drawn, mean, deviation)
            for row in range(len(drawn.matrix)):
                taken.append(self._proposal(each, row, "random"))
                self._mark(taken[-1])
        return taken

    def _mark(self, proposal: Proposal) -> None:
        key = self._key(proposal.sketch, proposal.decisions)
        self._pending[proposal.sketch][key] = proposal.decisions

    def _key(self, sketch: int, decisions: tuple[int, ...]) -> bytes:
        if len(decisions) != self._sketches[sketch].width:
            raise ValueError(
                f"sketch {sketch} has {self._sketches[sketch].width} columns, got {len(decisions)} decisions"
            )
        return row_keys(_matrix([decisions], len(decisions)))[0]

    def knows(self, sketch: int, decisions: tuple[int, ...]) -> bool:
        """Whether a valid candidate was measured or is pending; ValueError where it is not of this sketch."""
        key = self._key(sketch, decisions)
        if not is_valid(self._sketches[sketch], _matrix([decisions], len(decisions)))[0]:
            raise ValueError(f"{decisions} is no candidate of sketch {sketch}")
        return key in self._costs[sketch] or key in self._pending[sketch]
