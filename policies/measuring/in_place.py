"""Which version of a kernel is the fastest in its place in the network.

A shoot-out decides between kernels that run alone, over and over: their weights and inputs lie in the caches as far as
they fit. In the network they come from memory, and another kernel may be the fastest there. The versions are timed in
rounds, each in a network of its own; of every round the logarithm ``d`` of a version's seconds over the incumbent's is
kept, and with the mean of ``n`` rounds and its error, as in :mod:`policies.measuring.duel`,

    faster:  mean <= -LIMIT * error        error = max(deviation(d), FLOOR) / sqrt(n)

That is wrong for one kernel in forty that is not faster, so what is chosen is to be compared as a whole before it is
used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from policies.measuring.duel import FLOOR

LIMIT = 2.0


def fastest_in_place(secs: Sequence[Sequence[float]]) -> int:
    """The number of the version that is to be used. ``secs``: of each version, the incumbent's first, its seconds in
    each round; all have as many, two at least. The incumbent, 0, unless another is faster beyond its error; of several
    such the one of the lowest mean."""
    incumbent, *others = secs
    means = [0.0]
    for other in others:
        ratios = [math.log(mine / base) for mine, base in zip(other, incumbent, strict=True)]
        error = max(statistics.stdev(ratios), FLOOR) / math.sqrt(len(ratios))
        mean = statistics.fmean(ratios)
        means.append(mean if mean <= -LIMIT * error else math.inf)
    return means.index(min(means))
