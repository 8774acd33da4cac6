"""The stop rule of a measurement against values worked out by hand (AdaTune section 4.1)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.domain import StopRule
from policies.measuring.adaptive_stopping import coefficient_of_variation, confirmation, decide, following, precise

RULE = StopRule(min_batches=3, max_batches=5, max_cv=0.03, race_factor=2.0)


def test_variation_by_hand() -> None:
    # Seconds 1, 3: Time 1, 4; throughput 1, 0.5: deviation 0.25, mean 0.75.
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(1 / 3)
    assert coefficient_of_variation([2.0, 2.0, 2.0]) == 0.0
    # Seconds 1, 3, 2: throughput 1, 1/2, 1/2: mean 2/3, deviation sqrt(1/18).
    assert coefficient_of_variation([1.0, 3.0, 2.0]) == pytest.approx(math.sqrt(1 / 18) / (2 / 3))


@pytest.mark.parametrize("secs", [[], [1.0], [1.0, math.nan], [1.0, math.inf], [1.0, 0.0], [-1.0, 1.0]])
def test_variation_is_infinite_where_it_means_nothing(secs: list[float]) -> None:
    assert coefficient_of_variation(secs) == math.inf


def test_decisions() -> None:
    assert decide([], RULE, 1.0) is None
    assert decide([1.0, 1.0], RULE, 1.0) is None  # steady, but too few
    assert decide([1.0, 1.0, 1.0], RULE, 1.0) == "converged"
    assert decide([1.0, 1.5, 0.7, 1.4], RULE, 1.0) is None
    assert decide([1.0, 1.5, 0.7, 1.4, 0.6], RULE, 1.0) == "maximum"


def test_racing() -> None:
    assert decide([2.1], RULE, 1.0) == "raced"
    assert decide([2.0], RULE, 1.0) is None
    # The margin of the fastest shrinks: a share of 1, 1/2, 1/3 behind the incumbent.
    assert decide([1.4, 3.0], RULE, 1.0) is None
    assert decide([1.6, 1.51], RULE, 1.0) == "raced"
    assert decide([1.6, 1.34, 1.9], RULE, 1.0) == "raced"
    assert decide([1.6, 1.33, 1.9], RULE, 1.0) is None
    for nothing in (math.inf, math.nan, 0.0, -1.0):
        assert decide([2.1], RULE, nothing) is None
    assert decide([1e9], replace(RULE, race_factor=math.inf), 1.0) is None


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20), st.floats(1e-6, 1e3))
def test_who_is_as_fast_as_the_incumbent_is_never_raced(run_secs: list[float], incumbent_secs: float) -> None:
    if min(run_secs) <= incumbent_secs:
        assert decide(run_secs, RULE, incumbent_secs) != "raced"


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20), st.floats(0.0, 1e3))
def test_a_measurement_always_ends(run_secs: list[float], incumbent_secs: float) -> None:
    if len(run_secs) >= RULE.max_batches:
        assert decide(run_secs, RULE, incumbent_secs) is not None


@pytest.mark.parametrize(
    ("incumbent_secs", "timeout_secs"),
    # 200 times the incumbent, between 2 and 10 seconds.
    [(0.02, 4.0), (0.001, 2.0), (1.0, 10.0), (math.inf, 10.0), (0.0, 10.0), (math.nan, 10.0)],
)
def test_the_timeout_follows_the_incumbent(incumbent_secs: float, timeout_secs: float) -> None:
    rule = StopRule(timeout_secs=10.0, timeout_factor=200.0, min_timeout_secs=2.0)
    assert following(rule, incumbent_secs) == replace(rule, timeout_secs=timeout_secs)


def test_a_shorter_timeout_stays() -> None:
    assert following(StopRule(timeout_secs=0.3), 0.001).timeout_secs == 0.3


def test_what_would_be_the_new_incumbent_is_measured_again_more_precisely_and_without_racing() -> None:
    found = confirmation(RULE, 0.5)
    assert found is not None
    assert found.below_secs == 0.5
    assert found.rule.max_cv < RULE.max_cv
    assert found.rule.min_batches > RULE.min_batches
    assert found.rule.micro_batch_secs > RULE.micro_batch_secs
    assert math.isinf(found.rule.race_factor)


def test_no_second_measurement_of_the_first_candidate_nor_where_all_are_measured_to_the_end() -> None:
    for nothing in (math.inf, math.nan, 0.0):
        assert confirmation(RULE, nothing) is None
    assert confirmation(replace(RULE, race_factor=math.inf), 0.5) is None


def test_a_second_measurement_is_never_less_thorough_than_the_first() -> None:
    thorough = StopRule(micro_batch_secs=0.1, min_batches=20, max_batches=40, max_cv=0.001)
    assert precise(thorough) == replace(thorough, race_factor=math.inf)


@pytest.mark.parametrize(
    "wrong",
    [{"micro_batch_secs": 0.0}, {"max_batches": 2}, {"race_factor": 0.5}, {"max_cv": -0.1}, {"flush_bytes": -1}],
)
def test_a_rule_that_cannot_be_meant_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        StopRule(**wrong)  # type: ignore[arg-type]
