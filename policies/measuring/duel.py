"""A duel: two candidates run in turn (A B, B A, A B, ...) until it is clear which one is faster.

Two kernels that run one right after the other meet the same device. Each run allocates its tensors anew, because their
place in memory changes the time by up to a tenth. For every pair, ``d`` is the logarithm of the challenger's seconds
over the incumbent's. For ``n`` pairs

    mean = sum(d) / n        error = max(deviation(d), FLOOR) / sqrt(n)

- *faster*: ``mean <= -t(n) * error``, with ``t(n)`` Student's at a one-sided probability of 0.0005 and ``n - 1``
  degrees of freedom. This is tested after each of at most ``MAX_PAIRS`` pairs: for two equal kernels the chance that
  any test succeeds is below ``MAX_PAIRS * 0.0005``, half a percent. Heavy tails make it smaller. Another half of a
  percent is left for placements in memory that favour the same kernel four times in a row.
- *not worth it*: ``mean - error > -WORTH``; or, from the fourth pair on, the improvement ``-mean`` is less than half of
  the smallest that ``MAX_PAIRS`` pairs of this deviation could prove. The incumbent stays; most challengers end so
  after a few pairs.
- Otherwise, after ``MAX_PAIRS`` pairs, the incumbent stays too: only a clear case replaces it.
- With fewer than ``LEAST_PAIRS`` pairs when the time is up, the duel is undecided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet_tune.base.domain import StopRule
from policies.measuring.adaptive_stopping import CONFIRM_BATCH_SECS
from policies.measuring.student_t import t_quantile

STOPPED = "duel"
"""Reason why the measurement of a challenger ended (:attr:`fleet_tune.base.domain.Measurement.stopped`)."""
LEAST_PAIRS = 3
_OF_ONE_PAIR = 10.0
"""Deviation that is assumed for one pair alone, which says nothing. Every format of records can hold this number."""
MAX_PAIRS = 12
FLOOR = 0.015
"""Least deviation of a pair: three pairs that agree by chance, to a fifth, prove nothing."""
WORTH = 0.01
"""An improvement below this share does not count."""
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
    """True if the challenger is faster beyond doubt."""

    @property
    def is_decided(self) -> bool:
        """False if the time was up before there were enough pairs to tell which candidate is faster."""
        return self.pairs >= LEAST_PAIRS


def judged(log_ratios: Sequence[float], out_of_time: bool = False) -> Verdict | None:
    """Judge the pairs so far, in their order. Return None to go on. ``out_of_time``: there will be no more pairs.

    Raise ValueError if there is no ratio, or if one is not finite.
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
