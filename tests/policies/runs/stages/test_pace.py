"""The work under way that follows from the pace of a run; every number is worked out by hand."""

from __future__ import annotations

import pytest

from policies.runs.plan import InFlightLimits
from policies.runs.stages.pace import Pace, builders_at_first, searchers

FLOW = InFlightLimits(
    min_grant=8, max_grant=256, in_flight=16, target_batch_secs=1.5, first_batch=3, max_batch=64, min_batch=6
)


def known(candidate_secs: float, propose_secs: float = 0.5, build_secs: float = 0.5) -> Pace:
    pace = Pace(FLOW, ["class"])
    pace.measured("a", "class", 1, candidate_secs)
    for _ in range(200):
        pace.proposed("class", propose_secs)
        pace.built("class", build_secs)
    return pace


def test_a_batch_is_as_long_as_a_window() -> None:
    assert Pace(FLOW, ["class"]).batch("a", "class") == 3  # nothing is known
    assert known(0.1).batch("a", "class") == 15
    assert known(1.0).batch("a", "class") == 1
    assert known(60.0).batch("a", "class") == 1
    assert known(0.001).batch("a", "class") == 64
    assert known(0.5).batch("another", "class") == 3  # as the others of its class
    assert known(0.1).batch("b", "other") == 3


def test_a_batch_is_begun_for_few_only_where_few_fill_the_window() -> None:
    assert known(0.1).least_batch("class") == 6
    assert known(0.5).least_batch("class") == 3
    assert known(60.0).least_batch("class") == 1


@pytest.mark.parametrize(
    ("secs", "devices", "needed"),
    [
        (0.5, 64, 64 * (2 * 3 + 2)),  # a second to propose and build: two candidates
        (1.0, 1000, 1000 * (2 * 1 + 1)),
        (0.1, 1, 2 * 15 + 10),
    ],
)
def test_two_batches_and_what_is_on_the_way_are_under_way(secs: float, devices: int, needed: int) -> None:
    pace = known(secs)
    grant = min(256, max(8, needed // 8))
    assert pace.grant("class", devices) == pytest.approx(grant, abs=1)
    assert pace.under_way("class", devices) == pytest.approx(needed + grant, abs=2)


def test_nothing_is_known_before_the_first_batch() -> None:
    pace = Pace(FLOW, ["class"])
    assert (pace.grant("class", 64), pace.under_way("class", 64)) == (24, 64 * 3 + 24)
    assert (pace.grant("class", 2), pace.under_way("class", 2)) == (8, 16)


def test_a_class_has_something_under_way_however_slow_it_is() -> None:
    assert known(60.0).under_way("class", 1) == 16
    assert known(60.0).under_way("class", 0) == 16
    assert known(60.0).grant("class", 1) == 8


def test_what_takes_longer_lately_counts() -> None:
    pace = known(0.1)
    for _ in range(50):
        pace.measured("a", "class", 1, 1.5)
    assert pace.batch("a", "class") == 1
    assert pace.candidate_secs("class") == pytest.approx(1.5, rel=0.01)


def test_what_says_nothing_changes_nothing() -> None:
    pace = known(0.5)
    pace.measured("a", "class", 0, 3.0)
    pace.measured("a", "class", 3, 0.0)
    assert pace.candidate_secs("class") == 0.5


def test_builders_that_start_first_follow_the_devices() -> None:
    assert builders_at_first(1) == InFlightLimits().in_flight == 16
    assert builders_at_first(64) == 64 * 3 + 64 * 3 // 8


def test_searchers_follow_the_devices() -> None:
    assert [searchers(count) for count in (0, 1, 64, 65, 1000)] == [1, 1, 1, 2, 16]
