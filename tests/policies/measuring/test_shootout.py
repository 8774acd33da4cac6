"""The finalists of a task, by hand."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from policies.measuring.shootout import (
    MAX_FINALISTS,
    MAX_MARGIN,
    MIN_MARGIN,
    CostEstimate,
    finalists,
)


def standing(name: str, cost: float, error: float = 0.0) -> CostEstimate:
    return CostEstimate(name, cost, error)


def test_nothing_is_to_be_decided_between_none_or_one() -> None:
    assert finalists([]) == ()
    assert finalists([standing("a", 1.0)]) == ()
    assert finalists([standing("a", math.inf), standing("b", 1.0)]) == ()


def test_costs_that_cannot_be_told_apart_are_finalists_the_lowest_first() -> None:
    assert finalists([standing("b", 1.079), standing("a", 1.0), standing("c", 1.081)]) == ("a", "b")


def test_the_margin_is_twice_the_standard_error_of_the_difference() -> None:
    # Errors of 4 % each: 2 * sqrt(2) * 4 % = 11.31 %.
    best = standing("best", 1.0, 0.04)
    assert finalists([best, standing("in", 1.113, 0.04)]) == ("best", "in")
    assert finalists([best, standing("out", 1.114, 0.04)]) == ()
    # 2 * sqrt(0.04^2 + 0.05^2) = 12.81 %.
    assert finalists([best, standing("in", 1.128, 0.05)]) == ("best", "in")
    assert finalists([best, standing("out", 1.129, 0.05)]) == ()
    # The margin ends at its limit.
    assert finalists([best, standing("in", 1.1499, 0.5)]) == ("best", "in")
    assert finalists([best, standing("out", 1.1501, 0.5)]) == ()


STANDINGS = st.lists(
    st.builds(CostEstimate, st.uuids().map(str), st.floats(1e-6, 1.0), st.floats(0.0, 1.0)),
    max_size=30,
    unique_by=lambda each: each.cost_secs,
)


@given(STANDINGS)
def test_finalists_are_the_lowest_costs_and_near_to_the_best(standings: list[CostEstimate]) -> None:
    chosen = finalists(standings)
    costs = {each.candidate_id: each.cost_secs for each in standings}
    ordered = sorted(costs.values())
    assert len(chosen) != 1
    assert len(chosen) <= MAX_FINALISTS
    if chosen:
        assert costs[chosen[0]] == ordered[0]
        assert all(costs[name] <= ordered[0] * (1 + MAX_MARGIN) for name in chosen)
    elif len(ordered) > 1:
        assert ordered[1] > ordered[0] * (1 + MIN_MARGIN)
