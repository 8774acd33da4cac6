"""Seconds of a trial: to build a candidate, learned from the task's records, and to measure it.

*Building.* With ``u`` straight-line vector operations, a build takes ``b0(u) = 0.25 + 0.0008 u`` seconds before
anything is known. Records teach the ratio: ridge regression of ``r = log(build_secs / b0)`` on ``z``, standardised
columns of the symbolic features (sizes of the innermost tile, how far TVM unrolls, branches in what is unrolled, and
which sketch it is),

    r(x) = shift + w^T z(x),   shift = sum_i r_i / (n + 2),   w = (Z^T Z + ridge I)^-1 Z^T (r - shift)

so that without a record it is the prior, and few records move it little. The median is predicted, not the mean: builds
share their machine, and single ones take several times longer for no reason of the candidate's. What is left,

    s^2 = (sum_i (r_i - r(x_i))^2 + 2 * 0.5^2) / (n + 2)

says how likely a build ends within its limit: ``Phi((log limit - log secs) / s)``. One that ran into its limit would
have taken longer: it counts as twice the limit.

*Measuring.* A measurement is a number of micro-batches of at least ``micro_batch_secs`` and one run each: one for a
candidate that is predicted to lose the race, else the least number that can converge, and the rest for a part of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import StopRule
from policies.arrays import Features, Floats
from policies.features.table import SYMBOLIC
from policies.measuring.build_limit import BuildLimit
from policies.search.acquisition import normal_cdf
from policies.search.candidates import CandidateSet
from policies.search.prediction import Predictor

BUILD_SECS = 0.25
BUILD_SECS_PER_OPERATION = 0.0008
"""The prior: what a build takes at least, and for each straight-line vector operation."""
PRIOR_RECORDS = 2.0
PRIOR_DEVIATION = 0.5
"""Deviation of log build seconds from the prediction; on random candidates of 22 tasks 0.35 to 0.9, 0.5 on average."""
RIDGE = 16.0
CLIP = 3.0
"""Largest correction of a log build time, and largest standardised feature: a factor of 20."""
CONTINUED_SHARE = 0.25
"""Share of the measurements that go on to the maximum, because run times on a shared machine vary too much."""
MEASURE_SECS = 0.005
"""Upload, load and first run of a kernel."""

_UNROLLED = "unrolled"
_INLINED = "inlined"
_COLUMNS = (_UNROLLED, "vector", "accumulators", "choice.unroll_explicit")
_SKETCH = "sketch."


@dataclass(frozen=True, eq=False)
class BuildTime:
    """Build seconds of one task's candidates; make it with :func:`untrained` or :func:`fit_build_time`."""

    columns: NDArray[np.intp]
    """Columns of the joint symbolic features that it reads, ``(k - 1,)``."""
    unrolled: int | None
    """Column of the straight-line operations in log2; None if no sketch has it."""
    inlined: int | None
    """Column that is 1 if the inner loop computes an inlined producer at every point, a padding: a condition. None if
    no sketch has it."""
    centre: Floats
    """Means ``(k,)`` of the columns and of the operations with a condition."""
    scale: Floats
    """Deviations ``(k,)`` of the same."""
    shift: float
    """Constant term of the logarithm of seconds over those of the prior."""
    weights: Floats
    """Weights ``(k,)`` of the same."""
    deviation: float = PRIOR_DEVIATION
    """Deviation of log seconds from the prediction."""

    def secs(self, symbolic: Features) -> Floats:
        """Predicted build seconds ``(n,)`` of joint features ``(n, f)``, NaN where a sketch lacks a column."""
        ratio = self.shift + self._standard(symbolic) @ self.weights
        return np.asarray(self._prior(symbolic) * np.exp(np.clip(ratio, -CLIP, CLIP)))

    def in_time(self, symbolic: Features, limit_secs: float) -> Floats:
        """Probability that each build ends within the limit, ``(n,)`` in [0, 1]."""
        return normal_cdf((math.log(limit_secs) - np.log(self.secs(symbolic))) / self.deviation)

    def _prior(self, symbolic: Features) -> Floats:
        operations = np.ones(len(symbolic))
        if self.unrolled is not None:
            operations = np.exp2(np.nan_to_num(symbolic[:, self.unrolled].astype(np.float64), nan=0.0))
        return BUILD_SECS + BUILD_SECS_PER_OPERATION * operations

    def _read(self, symbolic: Features) -> Floats:
        """The columns, and the operations with a condition: an unrolled body has its branches in every copy. (n, k)."""
        branches = np.zeros(len(symbolic))
        if self.unrolled is not None and self.inlined is not None:
            branches = symbolic[:, self.unrolled].astype(np.float64) * symbolic[:, self.inlined]
        return np.column_stack([symbolic[:, self.columns].astype(np.float64), branches])

    def _standard(self, symbolic: Features) -> Floats:
        # A missing column stands at the mean: it says nothing.
        centred = np.nan_to_num(self._read(symbolic) - self.centre, nan=0.0)
        return np.clip(centred / self.scale, -CLIP, CLIP)


def untrained(names: Sequence[str]) -> BuildTime:
    """The prior; ``names`` of the joint symbolic features (see :class:`policies.features.table.JointLayout`)."""
    columns = [at for at, name in enumerate(names) if name in _COLUMNS or name.startswith(_SKETCH)]
    unrolled = names.index(_UNROLLED) if _UNROLLED in names else None
    inlined = names.index(_INLINED) if _INLINED in names else None
    none = np.zeros(len(columns) + 1)
    return BuildTime(np.array(columns, dtype=np.intp), unrolled, inlined, none, np.ones(len(none)), 0.0, none)


def fit_build_time(names: Sequence[str], symbolic: Features, build_secs: Floats) -> BuildTime:
    """Fit to the records of a task: joint features ``(n, f)`` and seconds ``(n,)``.

    Seconds that are not positive and finite (unknown ones) are left out; with none left it is the prior.
    """
    prior = untrained(names)
    timed = np.isfinite(build_secs) & (build_secs > 0)
    if not timed.any():
        return prior
    symbolic = symbolic[timed]
    chosen = prior._read(symbolic)
    present = np.isfinite(chosen)
    count = np.maximum(present.sum(axis=0), 1)
    centre = np.where(present, chosen, 0.0).sum(axis=0) / count
    spread = np.sqrt(np.where(present, np.square(chosen - centre), 0.0).sum(axis=0) / count)
    # Half a doubling is the least that counts as variation.
    scale = np.maximum(spread, 0.5)
    ratio = np.log(build_secs[timed]) - np.log(prior._prior(symbolic))  # as a quotient it may overflow
    shift = float(ratio.sum() / (len(ratio) + PRIOR_RECORDS))
    centred = BuildTime(prior.columns, prior.unrolled, prior.inlined, centre, scale, shift, prior.weights)
    standard = centred._standard(symbolic)
    weights = np.linalg.solve(standard.T @ standard + RIDGE * np.eye(len(centre)), standard.T @ (ratio - shift))
    left = ratio - shift - standard @ weights
    variance = (float(left @ left) + PRIOR_RECORDS * PRIOR_DEVIATION**2) / (len(left) + PRIOR_RECORDS)
    return BuildTime(prior.columns, prior.unrolled, prior.inlined, centre, scale, shift, weights, math.sqrt(variance))


def measure_secs(mean_log_secs: Floats, best_secs: float, rule: StopRule | None = None) -> Floats:
    """Seconds that measuring takes ``(n,)``, from predicted log run seconds ``(n,)``; NaN stays NaN.

    ``best_secs``: the incumbent's cost, infinite without one: then nothing is raced. At most the rule's timeout.
    """
    rule = rule or StopRule()
    with np.errstate(over="ignore"):
        run_secs = np.exp(np.asarray(mean_log_secs, dtype=np.float64))
    raced = run_secs > rule.race_factor * best_secs if 0 < best_secs < math.inf else np.zeros(len(run_secs), dtype=bool)
    batches = np.where(raced, 1.0, rule.min_batches + CONTINUED_SHARE * (rule.max_batches - rule.min_batches))
    secs = MEASURE_SECS + run_secs + batches * np.maximum(run_secs, rule.micro_batch_secs)
    return np.asarray(np.minimum(secs, rule.timeout_secs))


def trial_secs(
    build: BuildTime, symbolic: Features, mean_log_secs: Floats, best_secs: float, rule: StopRule | None = None
) -> Floats:
    """Seconds that building and measuring candidates takes, ``(n,)``."""
    return np.asarray(build.secs(symbolic) + measure_secs(mean_log_secs, best_secs, rule))


def per_second(gain: Floats, secs: Floats) -> Floats:
    """Expected improvement per second of build and measurement; times that are not positive and finite count as 1 s."""
    return np.asarray(gain / np.where(np.isfinite(secs) & (secs > 0), secs, 1.0))


@dataclass(frozen=True)
class PerSecond:
    """A weighting (:class:`policies.search.batch.Weighting`): scores per second of the trial, as far as its build is
    likely to end within its limit."""

    build_timeout_secs: float | None = None
    """Limit of every build; None: the limit that follows from the builds of the task."""

    def __call__(self, scores: Floats, offered: CandidateSet, predictor: Predictor, /) -> Floats:
        """See :class:`policies.search.batch.Weighting`."""
        table = predictor.table
        records = table.records
        build = fit_build_time(table.layout.names, table.features.view(SYMBOLIC), records.ordered_build_secs)
        limit = BuildLimit(self.build_timeout_secs)
        for build_secs in records.ordered_build_secs[np.isfinite(records.ordered_costs)].tolist():
            limit.observe(build_secs)
        symbolic = table.layout.place(offered.sketch, offered.features)
        scores = scores * build.in_time(symbolic, limit.secs)
        return per_second(scores, trial_secs(build, symbolic, offered.mean, records.best_secs))
