"""Detection of a network that has become slower than it was when it was published.

The network is timed in pairs with the device's probe, a kernel that always does the same. For each pair ``(n, p)`` of
seconds there are two logarithms, relative to the *baseline* ``(n0, p0)``, the medians of pairs that were taken in the
same way:

    beside the probe:  ln((n / p) / (n0 / p0))        altogether:  ln(n / n0)

- *slower*: beside the probe by more than a bound, beyond doubt by the rule of duels (:mod:`policies.measuring.duel`):
  the device is as fast as it was, the network is not.
- *drifted*: altogether by more than another bound, beyond doubt: the device itself has changed.

One device may be at fault: a finding holds for the class only if another of its devices confirms it, or, if there is
none, the same device a while later (hosts change their speed for minutes).
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from policies.measuring.duel import judged

LEAST_PAIRS = 6


class Finding(enum.StrEnum):
    """Finding on a network from its pairs."""

    FINE = "fine"
    SLOWER = "slower"
    DRIFTED = "drifted"


@dataclass(frozen=True, slots=True)
class Timed:
    """One pair: seconds of a run of the network, and of the probe."""

    network_secs: float
    probe_secs: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """Medians of the pairs of a network on one device."""

    network_secs: float
    probe_secs: float


def baseline(pairs: Sequence[Timed]) -> Baseline:
    """Return the baseline of at least one pair."""
    return Baseline(
        statistics.median(each.network_secs for each in pairs), statistics.median(each.probe_secs for each in pairs)
    )


def found(pairs: Sequence[Timed], against: Baseline, slower: float, drift: float) -> Finding | None:
    """Return the finding of the pairs so far; None to go on. ``slower``, ``drift``: the bounds, as shares."""
    if len(pairs) < LEAST_PAIRS:
        return None
    beside = _beside(pairs, against)
    altogether = [math.log(each.network_secs / against.network_secs) for each in pairs]
    # A duel asks whether a challenger is faster. Here the baseline challenges the present time, with the bound as a
    # handicap.
    verdicts = [
        judged([math.log1p(bound) - ratio for ratio in ratios])
        for ratios, bound in ((beside, slower), (altogether, drift))
    ]
    for verdict, finding in zip(verdicts, (Finding.SLOWER, Finding.DRIFTED), strict=True):
        if verdict is not None and verdict.faster:
            return finding
    return None if None in verdicts else Finding.FINE


def has_recovered(pairs: Sequence[Timed], against: Baseline, slower: float) -> bool:
    """Return true if the network is faster than at its baseline, beside the probe and by more than a bound, beyond
    doubt: something slowed it down while the baseline was taken."""
    verdict = judged([ratio + math.log1p(slower) for ratio in _beside(pairs, against)], out_of_time=True)
    return verdict is not None and verdict.faster


def _beside(pairs: Sequence[Timed], against: Baseline) -> list[float]:
    then = against.network_secs / against.probe_secs
    return [math.log(each.network_secs / each.probe_secs / then) for each in pairs]


def lost_log(pairs: Sequence[Timed], against: Baseline) -> float:
    """Logarithm of the network's slowdown against its baseline, beside the probe; at least 0."""
    now = baseline(pairs)
    ratio = now.network_secs / now.probe_secs * against.probe_secs / against.network_secs
    return max(0.0, math.log(ratio))
