"""The speed of a device by its probe, by hand and as properties."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.measuring.speed import Speedometer, changed

SECS = st.floats(1e-6, 1e3)


def speedometer(*probes: float, unit_secs: float | None = None) -> Speedometer:
    made = Speedometer()
    made.unit_secs = unit_secs
    for secs in probes:
        made.probed(secs)
    return made


def test_a_device_that_takes_half_of_the_unit_is_twice_as_fast() -> None:
    made = speedometer(1.0, 0.5, 0.5, unit_secs=1.0)
    assert (made.usual_secs, made.speed(made.usual_secs)) == (0.5, 2.0)
    assert made.between(0.5, 0.5) == (2.0, 0.0)
    assert speedometer(1.0).between(1.0, 1.0) == (1.0, 0.0)  # before the unit is known


def test_one_slow_moment_is_not_what_is_usual() -> None:
    # As it was seen: 3.19 ms when the device joined, 0.49 of that from then on.
    made = speedometer(3.19e-3, *[1.56e-3] * 9, unit_secs=3.19e-3)
    assert made.usual_secs == 1.56e-3
    speed, error = made.between(1.56e-3, 1.56e-3)
    assert speed == pytest.approx(2.0449, abs=1e-4)
    assert error == 0.0


def test_a_speed_that_changes_or_is_unusual_is_uncertain() -> None:
    made = speedometer(1.0, 1.0, 1.0, unit_secs=1.0)
    # From 1 to 1.21: the middle is 1.1; half of ln 1.21 is 0.0953, a quarter of ln 1.1 is 0.0238.
    speed, error = made.between(1.0, 1.21)
    assert speed == pytest.approx(1 / 1.1)
    assert error == pytest.approx(0.0982, abs=1e-4)
    # A quarter of ln 2.
    assert made.between(0.5, 0.5) == (2.0, pytest.approx(0.1733, abs=1e-4))


def test_a_change_is_more_than_a_tenth_either_way() -> None:
    assert [changed(1.0, secs) for secs in (0.9, 0.91, 1.0, 1.1, 1.11)] == [True, False, False, False, True]


@pytest.mark.parametrize("secs", [0.0, -1.0, math.inf, math.nan])
def test_a_probe_takes_some_time(secs: float) -> None:
    with pytest.raises(ValueError, match="says nothing"):
        Speedometer().probed(secs)


def test_nothing_is_usual_before_the_first_probe() -> None:
    with pytest.raises(ValueError, match="has not run"):
        _ = Speedometer().usual_secs


@given(st.lists(SECS, min_size=1, max_size=30))
def test_the_usual_one_is_the_median(probes: list[float]) -> None:
    assert speedometer(*probes).usual_secs == statistics.median_high(probes)


@given(st.lists(SECS, min_size=1, max_size=9), SECS, st.floats(0.1, 10.0), st.floats(1e-6, 1.0))
def test_a_kernel_that_follows_the_probe_costs_the_same_at_any_speed(
    probes: list[float], unit_secs: float, factor: float, run_secs: float
) -> None:
    made = speedometer(*probes, unit_secs=unit_secs)
    speed, error = made.between(unit_secs * factor, unit_secs * factor)
    assert run_secs * factor * speed == pytest.approx(run_secs)
    assert error >= 0
