"""The estimated latency of a network, from the best of its tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable

SMALL_SHARE = 0.05
"""Share of the network's operations that tasks without a result may have together. Their first trials come late, since
they can save little."""


def estimated_secs(tasks: Iterable[tuple[float, float, float]]) -> float:
    """Return the sum over the tasks of calls times best, in seconds. Tasks without a result are left out where they are
    small (:data:`SMALL_SHARE`); infinite where they are not, and where no task has a result.

    Args:
        tasks: of each task the calls in a run, the float operations of a call, and the seconds of its best kernel,
            infinite for none.
    """
    secs = operations = missing = 0.0
    known = False
    for weight, flop, best_secs in tasks:
        operations += weight * flop
        if math.isfinite(best_secs):
            secs += weight * best_secs
            known = True
        else:
            missing += weight * flop
            # One without operations, which moves data alone, counts as large: nothing is known of its share.
            missing = missing if flop > 0 else math.inf
    return secs if known and missing <= SMALL_SHARE * operations else math.inf
