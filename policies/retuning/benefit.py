"""Expected benefit of tuning a network further.

The evidence is the gain of earlier spans of tuning: for each span the device seconds that were spent before it
(``effort``) and in it, and the logarithm of the latency before it over the latency after it, as the two versions met on
a device. Latency falls about in proportion to the logarithm of the effort, so a network has a *slope* ``s``:

    gain of a span from effort a to effort b  =  s * ln(b / a)

The slope is estimated from the spans of the network. Each counts half as much as the next one, because curves get
flatter. It is drawn towards a prior, as if one doubling of the effort had been seen that bought what the prior says:

    s = (K * prior + sum(w x g)) / (K + sum(w x x))        x = ln(b / a)     w = 1, 1/2, 1/4, ... from the last one on
                                                           g = gain          K = ln(2)^2

The prior is the slope of the spans of all other networks, whose own prior is :data:`PRIOR_SLOPE`. A first span has no
effort before it: it says nothing about the slope.

Effort that was spent long ago counts less (:func:`faded`): hosts, libraries and loads change in ways that no
fingerprint shows. If a network has become slower than its own baseline (:mod:`policies.retuning.slowdown`), half of the
loss is expected back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_SLOPE = 0.03
"""Slope that is assumed before there is evidence of any network: a doubling of the effort saves 2% of the latency."""
REGAINED = 0.5
FIRST_SHARE = 0.5
"""Share of the latency that tuning is assumed to save for a network that was never tuned, or was changed. It serves to
rank such a network among others."""
DAY_SECS = 86400.0
HOUR_SECS = 3600.0
_PRIOR_WEIGHT = math.log(2) ** 2
_OLDER = 0.5


@dataclass(frozen=True, slots=True)
class Span:
    """One span of tuning, and what it has bought."""

    effort_before: float
    """Device seconds that were spent before it."""
    effort_secs: float
    """Device seconds of the span."""
    log_gain: float
    """Logarithm of the latency before it over the latency after it. 0 if nothing was published or better."""


@dataclass(frozen=True, slots=True)
class Value:
    """Expected worth of some device time."""

    device_secs: float
    """The device time in seconds."""
    saved_secs: float
    """Saved seconds of each call."""
    saved_secs_a_day: float
    """Saved seconds of all calls of a day."""

    @property
    def payback_days(self) -> float:
        return self.device_secs / self.saved_secs_a_day if self.saved_secs_a_day > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Evidence:
    """The two sums over spans in the formula of the slope. The sums of several networks can be added."""

    over: float = 0.0
    under: float = 0.0

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.over + other.over, self.under + other.under)

    def slope(self, prior: float = PRIOR_SLOPE) -> float:
        """The slope that follows from the sums; never below 0."""
        return max(0.0, (_PRIOR_WEIGHT * prior + self.over) / (_PRIOR_WEIGHT + self.under))


def evidence(spans: Sequence[Span]) -> Evidence:
    """Return the evidence of the spans of one network, oldest first."""
    over = under = 0.0
    weight = 1.0
    for span in reversed(spans):
        if span.effort_before > 0 and span.effort_secs > 0:
            distance = math.log1p(span.effort_secs / span.effort_before)
            over += weight * distance * span.log_gain
            under += weight * distance * distance
            weight *= _OLDER
    return Evidence(over, under)


def faded(effort_secs: float, elapsed_secs: float, half_life_secs: float) -> float:
    """Return the part of an effort that still counts after so long."""
    return effort_secs * math.exp2(-max(0.0, elapsed_secs) / half_life_secs)


def expected_share(slope: float, effort_secs: float, more_secs: float, lost_log: float = 0.0) -> float:
    """Return the share of the latency that ``more_secs`` of devices are expected to save. ``lost_log``: logarithm of
    the network's slowdown against its baseline."""
    if effort_secs <= 0:
        return FIRST_SHARE
    gain = slope * math.log1p(more_secs / effort_secs) + REGAINED * lost_log
    return -math.expm1(-gain)


def value(latency_secs: float, calls_a_day: float, share: float, device_secs: float) -> Value:
    """Return the worth of ``device_secs`` that save this share of the latency."""
    saved = latency_secs * share
    return Value(device_secs, saved, saved * calls_a_day)
