"""Adaptive stopping of a measurement (AdaTune section 4.1, and racing beyond it). It runs beside the kernel.

Two more decisions follow from the incumbent, before a measurement begins: its timeout (:func:`following`), and the
second measurement that a result needs to become the new incumbent (:func:`confirmation`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from fleet_tune.base.domain import Confirmation, StopRule

# The second measurement of a candidate that would be the new incumbent: least length of a micro-batch, least and
# largest number of them, and the coefficient of variation at which it ends. It takes some 50 ms, for one in ten to
# twenty candidates.
CONFIRM_BATCH_SECS = 0.01
CONFIRM_BATCHES = 5
CONFIRM_MAX_BATCHES = 15
CONFIRM_CV = 0.01


def coefficient_of_variation(run_secs: Sequence[float]) -> float:
    """Coefficient of variation of the cumulative throughput: ``std({Perf_1..Perf_i}) / avg({Perf_1..Perf_i})``.

    ``Perf_i = i / Time(i)``, with ``Time(i)`` the seconds of the first ``i`` micro-batches: here each counts with its
    mean seconds per run, so that micro-batches of different lengths weigh alike. The standard deviation is the
    population's. The result is infinite for fewer than two micro-batches, and if a time is NaN or not positive.
    """
    if len(run_secs) < 2 or any(not (math.isfinite(secs) and secs > 0) for secs in run_secs):
        return math.inf
    elapsed, performance = 0.0, []
    for done, secs in enumerate(run_secs, start=1):
        elapsed += secs
        performance.append(done / elapsed)
    return statistics.pstdev(performance) / statistics.fmean(performance)


def decide(run_secs: Sequence[float], rule: StopRule, incumbent_secs: float) -> str | None:
    """Decide if the measurement ends after these micro-batches (mean seconds per run of each, in order), and why.

    ``raced``: the fastest of ``k`` micro-batches is slower than the incumbent by more than the share
    ``(race_factor - 1) / k`` (never without an incumbent: infinite, NaN or not positive). Disturbances only make a run
    slower, so the fastest of more micro-batches is nearer to the kernel's own time, and a smaller margin is enough.
    ``converged``: at least ``min_batches`` are done and the variation is at most ``max_cv``. ``maximum``:
    ``max_batches`` are done. None: go on.
    """
    if not run_secs:
        return None
    if 0 < incumbent_secs < math.inf:
        margin = (rule.race_factor - 1.0) / len(run_secs)
        if min(run_secs) > (1.0 + margin) * incumbent_secs:
            return "raced"
    if len(run_secs) >= rule.min_batches and coefficient_of_variation(run_secs) <= rule.max_cv:
        return "converged"
    if len(run_secs) >= rule.max_batches:
        return "maximum"
    return None


def following(rule: StopRule, incumbent_secs: float) -> StopRule:
    """Return ``rule`` with the timeout that follows from the incumbent: ``timeout_factor`` times its cost, at least
    ``min_timeout_secs``, at most the ``timeout_secs`` that the rule has already. Unchanged without an incumbent."""
    if not 0 < incumbent_secs < math.inf:
        return rule
    secs = max(rule.min_timeout_secs, rule.timeout_factor * incumbent_secs)
    return replace(rule, timeout_secs=min(rule.timeout_secs, secs))


def confirmation(rule: StopRule, incumbent_secs: float) -> Confirmation | None:
    """Return the second, more precise measurement, without racing, which must confirm a result below the incumbent's
    cost.

    None if every candidate is measured to the end anyway (an infinite ``race_factor``: a dataset is collected), and for
    the first candidate of a task, whose cost need not be precise: it is the best so far.
    """
    if math.isinf(rule.race_factor) or not 0 < incumbent_secs < math.inf:
        return None
    return Confirmation(incumbent_secs, precise(rule))


def precise(rule: StopRule) -> StopRule:
    """The rule of second measurements: never less thorough than ``rule`` itself."""
    batches = max(rule.min_batches, CONFIRM_BATCHES)
    return replace(
        rule,
        micro_batch_secs=max(rule.micro_batch_secs, CONFIRM_BATCH_SECS),
        micro_batch_runs=0,
        min_batches=batches,
        max_batches=max(rule.max_batches, CONFIRM_MAX_BATCHES, batches),
        max_cv=min(rule.max_cv, CONFIRM_CV),
        race_factor=math.inf,
    )
