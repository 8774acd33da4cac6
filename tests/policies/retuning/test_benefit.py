"""What tuning further is expected to buy, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.retuning.benefit import (
    FIRST_SHARE,
    PRIOR_SLOPE,
    Evidence,
    Span,
    evidence,
    expected_share,
    faded,
    value,
)
from tests.helpers.properties import examples


def test_without_evidence_the_slope_is_the_prior() -> None:
    assert Evidence().slope() == PRIOR_SLOPE
    assert evidence([Span(0.0, 600.0, 1.0)]) == Evidence()  # a first span tells nothing of it


def test_evidence_of_several_networks_adds_up() -> None:
    one, other = evidence([Span(600.0, 600.0, 0.1)]), evidence([Span(600.0, 600.0, 0.0)])
    assert (one + other).slope(0.0) == pytest.approx(0.1 / math.log(2) / 3)


def test_one_doubling_counts_as_much_as_the_prior() -> None:
    # K = ln(2)^2 = x^2: the mean of the prior 0.03 and of 0.1 / ln(2).
    found = evidence([Span(600.0, 600.0, 0.1)]).slope()
    assert found == pytest.approx((0.03 + 0.1 / math.log(2)) / 2)


def test_the_last_span_counts_twice_as_much_as_the_one_before() -> None:
    rising = evidence([Span(600.0, 600.0, 0.0), Span(600.0, 600.0, 0.1)]).slope(0.0)
    falling = evidence([Span(600.0, 600.0, 0.1), Span(600.0, 600.0, 0.0)]).slope(0.0)
    assert rising == pytest.approx(2 * falling)
    assert rising == pytest.approx(0.1 / math.log(2) / 2.5)


def test_what_a_doubling_saves() -> None:
    assert expected_share(0.1, 600.0, 600.0) == pytest.approx(1 - 2**-0.1)
    assert expected_share(0.1, 0.0, 600.0) == FIRST_SHARE
    # Half of what was lost is expected back.
    assert expected_share(0.0, 600.0, 600.0, math.log(1.2)) == pytest.approx(1 - 1.2**-0.5)


def test_effort_fades_by_half_in_a_half_life() -> None:
    assert faded(600.0, 10.0, 10.0) == 300.0
    assert faded(600.0, -5.0, 10.0) == 600.0  # a clock that was set back


def test_a_span_pays_back_when_its_calls_have_saved_what_it_took() -> None:
    # 10 ms, a million calls a day, 1% saved: 100 s a day; 600 s of a device are back after 6 days.
    found = value(0.01, 1e6, 0.01, 600.0)
    assert found.saved_secs == pytest.approx(1e-4)
    assert found.saved_secs_a_day == pytest.approx(100.0)
    assert found.payback_days == pytest.approx(6.0)
    assert value(0.01, 1e6, 0.0, 600.0).payback_days == math.inf


@examples(60)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 1e6), st.floats(0, 2)), max_size=8),
    st.floats(1, 1e6),
    st.floats(1, 1e5),
)
def test_more_time_is_never_expected_to_buy_less_and_never_everything(
    spans: list[tuple[float, float, float]], effort: float, more: float
) -> None:
    found = evidence([Span(*each) for each in spans]).slope()
    assert found >= 0
    less, much = expected_share(found, effort, more), expected_share(found, effort, 2 * more)
    assert 0 <= less <= much <= 1
