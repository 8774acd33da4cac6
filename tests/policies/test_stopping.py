"""The stop rule of a measurement against values worked out by hand (AdaTune section 4.1)."""

from __future__ import annotations

import math

import pytest

from fleet_tune.domain import StopRule
from policies.stopping import decide, throughput_variation

RULE = StopRule(min_batches=3, max_batches=5, max_cv=0.03, race_factor=2.0)


def test_variation_by_hand() -> None:
    # Seconds 1, 3: Time 1, 4; throughput 1, 0.5: deviation 0.25, mean 0.75.
    assert throughput_variation([1.0, 3.0]) == pytest.approx(1 / 3)
    assert throughput_variation([2.0, 2.0, 2.0]) == 0.0
    # Seconds 1, 3, 2: throughput 1, 1/2, 1/2: mean 2/3, deviation sqrt(1/18).
    assert throughput_variation([1.0, 3.0, 2.0]) == pytest.approx(math.sqrt(1 / 18) / (2 / 3))


@pytest.mark.parametrize("secs", [[], [1.0], [1.0, math.nan], [1.0, math.inf], [1.0, 0.0], [-1.0, 1.0]])
def test_variation_is_infinite_where_it_means_nothing(secs: list[float]) -> None:
    assert throughput_variation(secs) == math.inf


def test_decisions() -> None:
    assert decide([], RULE, 1.0) is None
    assert decide([1.0, 1.0], RULE, 1.0) is None  # steady, but too few
    assert decide([1.0, 1.0, 1.0], RULE, 1.0) == "converged"
    assert decide([1.0, 1.5, 0.7, 1.4], RULE, 1.0) is None
    assert decide([1.0, 1.5, 0.7, 1.4, 0.6], RULE, 1.0) == "maximum"


def test_racing() -> None:
    assert decide([2.1], RULE, 1.0) == "raced"
    assert decide([2.0], RULE, 1.0) is None
    # One slow micro-batch does not race a candidate that was fast in another.
    assert decide([1.5, 3.0], RULE, 1.0) is None
    for nothing in (math.inf, math.nan, 0.0, -1.0):
        assert decide([2.1], RULE, nothing) is None
