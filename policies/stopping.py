"""When to stop measuring a candidate (AdaTune section 4.1, and racing beyond it). Runs beside the kernel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from fleet_tune.domain import StopRule


def throughput_variation(run_secs: Sequence[float]) -> float:
    """Coefficient of variation of the cumulative throughput: ``std({Perf_1..Perf_i}) / avg({Perf_1..Perf_i})``.

    ``Perf_i = i / Time(i)``, with ``Time(i)`` the seconds of the first ``i`` micro-batches: here each counts with its
    mean seconds per run, so that micro-batches of different lengths weigh alike. The standard deviation is the
    population's. Infinite for fewer than two micro-batches, NaN or times that are not positive.
    """
    if len(run_secs) < 2 or any(not (math.isfinite(secs) and secs > 0) for secs in run_secs):
        return math.inf
    elapsed, performance = 0.0, []
    for done, secs in enumerate(run_secs, start=1):
        elapsed += secs
        performance.append(done / elapsed)
    return statistics.pstdev(performance) / statistics.fmean(performance)


def decide(run_secs: Sequence[float], rule: StopRule, incumbent_secs: float) -> str | None:
    """Whether the measurement ends after these micro-batches (mean seconds per run of each, in order), and why.

    ``raced``: the fastest micro-batch so far is slower than ``race_factor`` times the incumbent (never without an
    incumbent: infinite, NaN or not positive). ``converged``: at least ``min_batches`` and the variation is at most
    ``max_cv``. ``maximum``: ``max_batches`` are done. None: go on.
    """
    if not run_secs:
        return None
    if 0 < incumbent_secs < math.inf and min(run_secs) > rule.race_factor * incumbent_secs:
        return "raced"
    if len(run_secs) >= rule.min_batches and throughput_variation(run_secs) <= rule.max_cv:
        return "converged"
    if len(run_secs) >= rule.max_batches:
        return "maximum"
    return None
