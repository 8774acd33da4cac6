"""An ensemble's estimate of its own errors: the deviation of predictions, and the level of scores that only rank.

Notation: ``M`` members, each trained on a resample of the ``n`` records with repetition; ``drawn`` ``(M, n)``: how
often each has drawn each record.

- A record's *out-of-bag prediction* is the mean of the ``n_i`` members whose resample lacks it. Its squared error is
  that of the model plus ``s_i^2 / n_i``, because only few members predict (``s_i^2``: the members' variance, divided by
  ``M - 1``). So ``noise^2`` is the mean of ``(y_i - out_of_bag_i)^2 - s_i^2 / n_i``. Trees weigh this mean by the
  record's throughput over its task's best: slow candidates are predicted worse, and do not matter.
- The deviation of a prediction is ``sqrt(s(x)^2 + noise^2)``.
- For a rank objective, a monotone fit (:mod:`policies.cost_models.monotone`) on the out-of-bag scores, pooled over the
  tasks, turns scores into log seconds: the order is right, and the level is that of all tasks together.

A single member has no out-of-bag records: its deviation is its error on the records that it was trained on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats
from policies.cost_models.monotone import MonotoneMap

LEAST_LEFT_OUT = 8
"""With fewer out-of-bag records than this, their error is not reliable: the deviation is at least UNKNOWN_DEVIATION."""
UNKNOWN_DEVIATION = 0.7
LEAST_DEVIATION = 0.02
"""Repeated measurements of one kernel differ by a few percent."""


def resamples(members: int, weights: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """Number of times that each member draws each record, ``(members, n)``: a member draws ``n`` times, in proportion
    to the weights ``(n,)``. A single member takes each record once."""
    count = len(weights)
    if members == 1:
        return np.ones((1, count), dtype=np.int64)
    return rng.multinomial(count, weights / weights.sum(), size=members)


def spread(each: Floats) -> Floats:
    """Deviation among the members ``(M, n)``, shape ``(n,)``; 0 for a single one."""
    return np.asarray(each.std(axis=0, ddof=1)) if len(each) > 1 else np.zeros(each.shape[1])


def learn_deviation(
    scores: Floats, log_secs: Floats, drawn: NDArray[np.int64], weight: Floats, *, ranks: bool
) -> tuple[MonotoneMap | None, float]:
    """The map of a rank model (None for a regression) and the noise, from the members that have not seen a record.

    ``scores`` ``(M, n)``: each member's prediction of each record, larger for slower; ``weight`` ``(n,)``.
    """
    unseen = (drawn == 0) if len(drawn) > 1 else np.ones(drawn.shape, dtype=bool)
    voters = unseen.sum(axis=0)
    usable = voters > 0
    enough = int(usable.sum()) >= LEAST_LEFT_OUT
    if not enough:
        unseen, voters, usable = np.ones_like(unseen), np.full_like(voters, len(scores)), np.ones_like(usable)
    voters = voters[usable]
    level = None
    if ranks:
        out_of_bag = (scores * unseen).sum(axis=0)[usable] / voters
        level = MonotoneMap.fit(out_of_bag, log_secs[usable])
    each = scores if level is None else level(scores)
    error = (each * unseen).sum(axis=0)[usable] / voters - log_secs[usable]
    mean_variance = np.square(spread(each)[usable]) / voters
    variance = float(np.average(np.square(error) - mean_variance, weights=weight[usable]))
    least = LEAST_DEVIATION if enough else UNKNOWN_DEVIATION
    return level, max(float(np.sqrt(max(variance, 0.0))), least)
