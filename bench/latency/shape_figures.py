"""Figures of a network over the extents of its dynamic dimension: samples of a distribution, and means over it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fleet_tune.base.shapes.dimensions import Weights

DYNAMIC = "dynamic"
"""Name of the network that is tuned for all extents."""
FIXED = "fixed"
"""Name of the networks that are tuned for one extent alone."""
MOST_EXTENTS = 8
"""Largest number of extents at which a network is timed."""


def sampled_extents(weights: Weights, most: int = MOST_EXTENTS) -> Weights:
    """Return at most ``most`` of the extents, with their weights: both ends, and the others evenly spaced by position.
    The weight of an omitted extent is added to the returned extent that is nearest by ratio."""
    if len(weights) <= most:
        return weights
    places = (round(at * (len(weights) - 1) / (most - 1)) for at in range(most))
    total = dict.fromkeys((weights[place][0] for place in places), 0.0)
    for extent, weight in weights:
        total[min(total, key=lambda each: abs(math.log(each / extent)))] += weight
    return tuple(total.items())


def median_of(extent: Mapping[str, Any], side: str) -> float | None:
    """Return the median seconds of a side at an extent of the result; None if the side does not run there."""
    secs = extent["sides"][side].get("secs")
    return None if secs is None else float(secs["median"])


def weighted_mean(extents: Sequence[Mapping[str, Any]], side: str) -> float | None:
    """Return the weighted mean of a side's medians over the extents; None if it does not run at every extent."""
    medians = [median_of(each, side) for each in extents]
    ran = [median for median in medians if median is not None]
    if len(ran) < len(medians):
        return None
    weights = [float(each["weight"]) for each in extents]
    return sum(median * weight for median, weight in zip(ran, weights, strict=True)) / sum(weights)


def best_of(secs: Mapping[str, float | None], sides: Sequence[str]) -> float | None:
    """Return the least of the seconds of ``sides``; None if no side runs."""
    return min((each for side in sides if (each := secs[side]) is not None), default=None)
