"""How many candidates are drawn at random: by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policies.search.exploration import (
    ContextualEpsilon,
    FixedEpsilon,
    contextual_epsilon,
    epsilon_of_secs,
)


def test_contextual_epsilon() -> None:
    assert contextual_epsilon(np.array([1.0, 3.0]), 10.0) == pytest.approx(0.2)
    assert contextual_epsilon(np.array([10.0, 30.0]), 10.0) == 1.0
    assert contextual_epsilon(np.array([1.0, math.nan, -1.0, math.inf]), 10.0) == pytest.approx(0.1)
    for best in (0.0, -1.0, math.nan, math.inf):
        assert contextual_epsilon(np.array([1.0]), best) == 1.0
    assert contextual_epsilon(np.empty(0), 10.0) == 1.0
    # Everything as fast as the incumbent, 20% uncertain.
    assert epsilon_of_secs(np.log([2.0, 2.0]), np.array([0.2, 0.2]), 2.0) == pytest.approx(0.2)
    assert epsilon_of_secs(np.zeros(2), np.ones(2), math.inf) == 1.0


def test_exploration_shares() -> None:
    mean, deviation = np.log([2.0, 2.0]), np.array([0.2, 0.2])
    assert FixedEpsilon(0.05).share(mean, deviation, 2.0) == 0.05
    assert ContextualEpsilon().share(mean, deviation, 2.0) == pytest.approx(0.2)
    # Nothing measured, nothing predicted, no usable deviation: nothing is known.
    for rule_mean, rule_deviation, best in (
        (mean, deviation, math.inf),
        (mean[:0], deviation[:0], 2.0),
        (mean, np.full(2, math.nan), 2.0),
    ):
        assert ContextualEpsilon().share(rule_mean, rule_deviation, best) == 1.0
    assert ContextualEpsilon().share(mean, np.zeros(2), 2.0) == 0.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        FixedEpsilon(1.5)


def test_a_fixed_share_needs_no_plans() -> None:
    assert FixedEpsilon(0.05).plans == ContextualEpsilon().plans == 0
    assert ContextualEpsilon(plans=20).plans == 20
