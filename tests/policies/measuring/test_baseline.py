"""When a device is off, by hand."""

from __future__ import annotations

import math

import pytest

from policies.measuring.baseline import SETTLED_CHECKS, Baseline, checked


def test_the_first_check_is_the_baseline() -> None:
    assert checked(None, 0.002) == Baseline(0.002)


@pytest.mark.parametrize("secs", [0.9, 1.0, 1.19, 1 / 1.19])
def test_within_the_factor_a_device_is_right(secs: float) -> None:
    assert checked(Baseline(1.0, 1.5, 1), secs, 1.2) == Baseline(1.0)


@pytest.mark.parametrize("secs", [1.21, 1 / 1.21])
def test_beyond_it_is_off_in_both_directions(secs: float) -> None:
    found = checked(Baseline(1.0), secs, 1.2)
    assert (found.secs, found.factor, found.off) == (1.0, secs, True)


def test_a_device_that_stays_as_it_is_has_changed() -> None:
    baseline = Baseline(1.0)
    for _ in range(SETTLED_CHECKS - 1):
        baseline = checked(baseline, 1.5)
        assert (baseline.secs, baseline.factor) == (1.0, 1.5)
    assert checked(baseline, 1.52) == Baseline(1.52)


def test_a_device_that_goes_on_changing_is_off_all_the_time() -> None:
    baseline = Baseline(1.0)
    for at in range(10):
        baseline = checked(baseline, 1.3 * 1.1**at)
        assert (baseline.secs, baseline.off_checks) == (1.0, 1)


@pytest.mark.parametrize(("secs", "factor"), [(0.0, 1.2), (math.nan, 1.2), (math.inf, 1.2), (1.0, 0.9)])
def test_what_says_nothing_is_an_error(secs: float, factor: float) -> None:
    with pytest.raises(ValueError, match="says nothing"):
        checked(None, secs, factor)
