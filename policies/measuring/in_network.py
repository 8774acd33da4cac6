"""The choice of the version of a kernel that is the fastest in its place in the network.

A shoot-out decides between kernels that run alone, over and over: their weights and inputs lie in the caches as far as
they fit. In the network they come from memory, and another kernel may be the fastest there. The versions are timed in
rounds. Each round times all versions, each in a network of its own. For every round, ``d`` is the logarithm of a
version's seconds over the incumbent's. As in :mod:`policies.measuring.duel`, with the mean of ``n`` rounds and its
error,

    faster:  mean <= -t(n) * error        error = max(deviation(d), FLOOR) / sqrt(n)

with Student's ``t`` at a one-sided probability of 0.01: of a hundred versions that are not faster, one is taken to be
faster. So the choices for the tasks of a network are compared as a whole before they are used (:func:`is_worth_it`). A
choice is kept. It holds until a kernel that was not timed is the fastest alone (:func:`still_holds`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence

from policies.measuring.duel import FLOOR, WORTH, Verdict
from policies.measuring.student_t import t_quantile

# One-sided probability of the quantile.
_SURE = 0.99
LEAST_ROUNDS, MOST_ROUNDS = 2, 8


def judged_in_network(secs: Sequence[float], incumbent_secs: Sequence[float]) -> Verdict:
    """Judge a version by its seconds and the incumbent's in each of ``LEAST_ROUNDS`` to ``MOST_ROUNDS`` rounds. Raise
    ValueError for another number of rounds."""
    rounds = len(secs)
    if not LEAST_ROUNDS <= rounds <= MOST_ROUNDS:
        raise ValueError(f"{rounds} rounds: from {LEAST_ROUNDS} to {MOST_ROUNDS} tell something")
    ratios = [math.log(mine / theirs) for mine, theirs in zip(secs, incumbent_secs, strict=True)]
    error = max(statistics.stdev(ratios), FLOOR) / math.sqrt(rounds)
    mean = statistics.fmean(ratios)
    return Verdict(math.exp(mean), error, rounds, mean <= -t_quantile(_SURE, rounds) * error)


def fastest_in_network(secs: Sequence[Sequence[float]]) -> tuple[int, Verdict] | None:
    """Return the number of the version to use instead of the incumbent, and its verdict. ``secs``: the seconds of each
    version in each round, the incumbent first. None if no version is faster beyond doubt; of several, the fastest."""
    incumbent, *others = secs
    verdicts = [(number, judged_in_network(other, incumbent)) for number, other in enumerate(others, 1)]
    faster = [(number, verdict) for number, verdict in verdicts if verdict.faster]
    return min(faster, key=lambda each: each[1].ratio, default=None)


def is_worth_it(secs: float, before_secs: float) -> bool:
    """Return true if a network is faster than before by at least the share ``WORTH``."""
    return secs <= before_secs * (1 - WORTH)


def still_holds(chosen: str, compared: Collection[str], best_alone: str) -> bool:
    """Return true if the choice between the ``compared`` candidates still holds, now that ``best_alone`` is the fastest
    alone. The time in the network of a candidate that did not run beside the ``chosen`` one is unknown: such a
    candidate counts as better until it is known."""
    return chosen in compared and best_alone in compared
