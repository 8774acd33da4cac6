"""A duel: two candidates run in turn (A B, B A, A B, ...) until it is clear which one is faster.

Two kernels that run one right after the other meet the same device. Each run lays its tensors out anew, for where they
lie makes up to a tenth of the time. Of every pair the logarithm ``d`` of the challenger's seconds over the incumbent's
is kept; of ``n`` pairs

    mean = sum(d) / n        error = max(deviation(d), FLOOR) / sqrt(n)

- *faster*: ``mean <= -t(n) * error``, with ``t(n)`` Student's at a one-sided probability of 0.0005 and ``n - 1``
  degrees of freedom. It is looked at after each of at most ``MAX_PAIRS`` pairs: for two equal kernels the chance that
  it is ever so is below ``MAX_PAIRS * 0.0005``, half a percent; heavy tails make it less, and placements in memory that
  favour the same one four times in a row are what the other half of a percent is for.
- *not worth it*: ``mean - error > -WORTH``; or, from the fourth pair on, ``mean`` is less than half of what
  ``MAX_PAIRS`` pairs of this deviation could tell. The incumbent stays; most challengers end so after a few pairs.
- Otherwise, after ``MAX_PAIRS`` pairs, the incumbent stays too: it takes a clear case to replace it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet_tune.base.domain import StopRule
from policies.measuring.adaptive_stopping import CONFIRM_BATCH_SECS
from policies.measuring.student_t import t_quantile

LEAST_PAIRS = 3
_OF_ONE_PAIR = 10.0
"""Deviation that one pair alone is taken to have: it says nothing, and every format of records has it."""
MAX_PAIRS = 12
FLOOR = 0.015
"""Least deviation of a pair: three that agree by chance, to a fifth, prove nothing."""
WORTH = 0.01
"""An improvement below this share is none."""
# One-sided probability of the quantile.
_SURE = 0.9995
_RUN_BATCHES = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a duel."""

    ratio: float
    """Ratio of the challenger's seconds to the incumbent's: the geometric mean of the pairs."""
    error: float
    """Standard error of the ratio, as a share of it."""
    pairs: int
    """Number of pairs."""
    faster: bool
    """True where the challenger is faster beyond doubt."""


def judged(log_ratios: Sequence[float], out_of_time: bool = False) -> Verdict | None:
    """Judge the pairs so far, in their order. Return None to go on. ``out_of_time``: there will be no more pairs.

    ValueError for ratios that are not finite, or none.
    """
    pairs = len(log_ratios)
    if not pairs or not all(map(math.isfinite, log_ratios)):
        raise ValueError(f"these are no ratios to judge by: {log_ratios}")
    mean = statistics.fmean(log_ratios)
    deviation = max(statistics.stdev(log_ratios) if pairs > 1 else _OF_ONE_PAIR, FLOOR)
    error = deviation / math.sqrt(pairs)
    faster = pairs >= LEAST_PAIRS and mean <= -t_quantile(_SURE, min(pairs, MAX_PAIRS)) * error
    in_sight = t_quantile(_SURE, MAX_PAIRS) * deviation / math.sqrt(MAX_PAIRS)
    hopeless = (pairs >= LEAST_PAIRS and mean - error > -WORTH) or (pairs > LEAST_PAIRS and mean > -in_sight / 2)
    if faster or hopeless or out_of_time or pairs >= MAX_PAIRS:
        return Verdict(math.exp(mean), error, pairs, faster)
    return None


def challenger_first(pair: int) -> bool:
    """Return true if the challenger begins the pair of this number, counted from 0. The order alternates, so that a
    device that slows down favours neither side."""
    return pair % 2 == 1


def run_rule(rule: StopRule) -> StopRule:
    """Return the rule for each run of a pair: a fixed number of micro-batches, and no racing."""
    return replace(
        rule,
        micro_batch_secs=max(rule.micro_batch_secs, CONFIRM_BATCH_SECS),
        micro_batch_runs=0,
        min_batches=_RUN_BATCHES,
        max_batches=_RUN_BATCHES,
        race_factor=math.inf,
    )
